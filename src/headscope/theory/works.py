"""The works whose statements are judged here, each cited by author and title."""

from headscope.theory.claim import Chapter


def wertich() -> Chapter:
    """Martin Volker Wertich's bachelor thesis, Mainz, July 2024."""
    return Chapter(
        "Wertich",
        "Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of Gaussian "
        "Distributions",
    )


def wertich_page() -> Chapter:
    """The page that presents the thesis."""
    return Chapter("Wertich", "Bachelor Thesis: Exploring the Hidden Structures of Attention Layers (project page)")


def conti() -> Chapter:
    """Eddie Conti's notes, 2023/2024."""
    return Chapter("Conti", "The Math behind transformers")


def conti_readme() -> Chapter:
    """The readme of the repository of his thesis."""
    return Chapter("Conti", "The Math behind transformers (readme of the repository)")


def bukatin() -> Chapter:
    """Michael Bukatin's talk at the Hopf algebra seminar."""
    return Chapter("Bukatin", "An overview of mathematical foundations of Transformer analysis")
