import { PageTransport } from "./transport";
import { drawFigures } from "./figures/figures";

const transport = new PageTransport(document);
drawFigures(document, transport);
