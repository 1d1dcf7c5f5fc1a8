"""The paper's tables of visual question answering out of finished runs, its own figures beside ours.

Rows that the paper does not have come last in each.
"""

from onmt_varattn.reproduction.recipe import Paper
from onmt_varattn.reproduction.tables import (
    Results,
    Table,
    Value,
    figure,
    finished,
    in_mode,
    kmax_modes,
    label,
    reported,
    value,
)

ANSWER_TYPES = ["yes/no", "number", "other"]  # the official ones, in the order they are given in


def nll(mode: str) -> Value:
    """Negative log-likelihood a question in a mode of testing."""
    return in_mode("nll", mode)


def accuracy(mode: str) -> Value:
    """Official VQA accuracy in percent, likewise."""
    return in_mode("accuracy", mode)


def table_1(results: Results, paper: Paper) -> Table:
    """Objectives and expectations."""
    return Table(
        "table1",
        "Table 1, right: objective and expectation",
        ["attention", "objective", "expectation", "NLL", "accuracy", "paper: NLL", "paper: accuracy"],
        [
            [
                *label(paper, row),
                figure(results[row], nll("natural")),
                figure(results[row], accuracy("natural")),
                *reported(paper, row, "nll", "accuracy"),
            ]
            for row in rows_in_order(results, paper)
        ],
    )


def answer_type_table(results: Results, paper: Paper) -> Table:
    """Accuracy by the type of answer that annotators gave."""
    found = {kind for runs in results.values() for result in runs for kind in result["accuracy_by_type"]}
    kinds = [*(kind for kind in ANSWER_TYPES if kind in found), *sorted(found - set(ANSWER_TYPES))]
    return Table(
        "answer_types",
        "Accuracy by type of answer, in percent",
        ["attention", "expectation", *kinds, "all"],
        [
            [
                *label(paper, row)[::2],
                *(figure(results[row], of_type(kind)) for kind in kinds),
                figure(results[row], accuracy("natural")),
            ]
            for row in rows_in_order(results, paper)
        ],
    )


def of_type(kind: str) -> Value:
    """Accuracy over questions with a type of answer."""
    return lambda result: result["accuracy_by_type"].get(kind)


def kmax_table(results: Results, paper: Paper) -> Table:
    """NLL against K: the numbers of the plot."""
    return _against_k(results, paper, "nll", "kmax", "NLL when the K most probable boxes are mixed")


def kmax_accuracy_table(results: Results, paper: Paper) -> Table:
    """Accuracy against K."""
    return _against_k(
        results, paper, "accuracy", "kmax_accuracy", "Accuracy when the K most probable boxes are mixed"
    )


def _against_k(results: Results, paper: Paper, number: str, name: str, title: str) -> Table:
    ks = kmax_modes(results, number)
    return Table(
        name,
        title,
        ["attention", "expectation", *(f"K={k}" for k in ks), "all", "soft"],
        [
            [
                *label(paper, row)[::2],
                *(figure(results[row], in_mode(number, f"kmax{k}")) for k in ks),
                *(figure(results[row], in_mode(number, mode)) for mode in ("exact", "soft")),
            ]
            for row in rows_in_order(results, paper)
        ],
    )


def table_3(results: Results, paper: Paper) -> Table:
    """Ways of training the posterior: all rows with variational attention."""
    return Table(
        "table3",
        "Inference alternatives for variational attention",
        ["attention", "objective", "expectation", "NLL", "accuracy", "ELBO a question", "KL a question"],
        [
            [
                *label(paper, row),
                figure(results[row], nll("natural")),
                figure(results[row], accuracy("natural")),
                figure(results[row], value("elbo"), 3),
                figure(results[row], value("kl"), 3),
            ]
            for row in rows_in_order(results, paper)
            if results[row][0]["attention"] == "variational"
        ],
    )


def entropy_table(results: Results, paper: Paper) -> Table:
    """How sharp alignments are."""
    kinds = ("prior_entropy", "posterior_entropy", "exact_posterior_entropy")
    return Table(
        "entropies",
        "Table 3, right: entropy of alignments to boxes, in nats a question",
        ["attention", "expectation", "prior", "posterior", "exact posterior", "paper: prior"],
        [
            [
                *label(paper, row)[::2],
                *(figure(results[row], value(kind)) for kind in kinds),
                *reported(paper, row, "entropy"),
            ]
            for row in rows_in_order(results, paper)
        ],
    )


def box_table(results: Results, paper: Paper) -> Table:
    """How probable the box is that a label is about, where gold boxes are known."""
    known = {row: runs for row, runs in results.items() if runs and runs[0].get("boxes")}
    kinds = list(dict.fromkeys(kind for runs in known.values() for run in runs for kind in run["boxes"]))
    names = {"prior": "prior", "posterior": "posterior", "exact": "exact posterior"}
    return Table(
        "boxes",
        "Probability of the box that the answer is about, in percent, by kind of question",
        ["attention", "expectation", *(f"{kind}: {name}" for kind in kinds for name in names.values())],
        [
            [
                *label(paper, row)[::2],
                *(figure(known[row], mass(kind, of), 1) for kind in kinds for of in names),
            ]
            for row in rows_in_order(known, paper)
        ],
    )


def mass(kind: str, of: str) -> Value:
    """Of a distribution on the right box, over a kind of questions."""
    return lambda result: result["boxes"].get(kind, {"mass": {}})["mass"].get(of)


def rows_in_order(results: Results, paper: Paper) -> list[str]:
    """All finished rows, the paper's first."""
    return finished([*paper.results, *(row for row in results if row not in paper.results)], results)
