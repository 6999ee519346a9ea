import { showTipsOfElements } from "./drawing/tooltip";
import { drawFigures } from "./figures/figures";
import { PageTransport } from "./transport";

const transport = new PageTransport(document);
showTipsOfElements(document);
drawFigures(document, transport);
