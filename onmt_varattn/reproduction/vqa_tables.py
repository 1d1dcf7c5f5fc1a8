"""The paper's tables of visual question answering; rows that the paper does not have come last."""

from onmt_varattn.reproduction import tables
from onmt_varattn.reproduction.recipe import Paper
from onmt_varattn.reproduction.tables import Column, Results, Table, Value, in_mode, value

ANSWER_TYPES = ["yes/no", "number", "other"]  # the official ones, in their usual order
NATURAL = {"NLL": Column(in_mode("nll")), "accuracy": Column(in_mode("accuracy"))}


def table_1(results: Results, paper: Paper) -> Table:
    """Objectives and expectations."""
    return tables.build(
        "table1",
        "Table 1, right: objective and expectation",
        results,
        paper,
        _rows(results, paper),
        NATURAL,
        labels=tables.LABELS,
        reported={"NLL": "nll", "accuracy": "accuracy"},
    )


def answer_type_table(results: Results, paper: Paper) -> Table:
    """Accuracy by type of answer."""
    found = {kind for runs in results.values() for result in runs for kind in result["accuracy_by_type"]}
    kinds = [*(kind for kind in ANSWER_TYPES if kind in found), *sorted(found - set(ANSWER_TYPES))]
    columns = {kind: Column(_of_type(kind)) for kind in kinds} | {"all": NATURAL["accuracy"]}
    title = "Accuracy by type of answer, in percent"
    return tables.build("answer_types", title, results, paper, _rows(results, paper), columns)


def kmax_table(results: Results, paper: Paper) -> Table:
    """NLL against K: the numbers of the plot."""
    title = "NLL when the K most probable boxes are mixed"
    return tables.against_k("kmax", title, "nll", results, paper, _rows(results, paper))


def kmax_accuracy_table(results: Results, paper: Paper) -> Table:
    """Accuracy against K."""
    title = "Accuracy when the K most probable boxes are mixed"
    return tables.against_k("kmax_accuracy", title, "accuracy", results, paper, _rows(results, paper))


def table_3(results: Results, paper: Paper) -> Table:
    """Ways of training the posterior: all rows with variational attention."""
    rows = [row for row in _rows(results, paper) if results[row][0]["attention"] == "variational"]
    bounds = {"ELBO per question": Column(value("elbo"), 3), "KL per question": Column(value("kl"), 3)}
    title = "Inference alternatives for variational attention"
    return tables.build("table3", title, results, paper, rows, {**NATURAL, **bounds}, labels=tables.LABELS)


def entropy_table(results: Results, paper: Paper) -> Table:
    """Entropies of alignments to boxes."""
    return tables.entropies("question", results, paper, _rows(results, paper))


def box_table(results: Results, paper: Paper) -> Table:
    """Probability of the box that a label is about, where gold boxes are known."""
    known = {row: runs for row, runs in results.items() if runs and runs[0].get("boxes")}
    kinds = list(dict.fromkeys(kind for runs in known.values() for run in runs for kind in run["boxes"]))
    names = {"prior": "prior", "posterior": "posterior", "exact": "exact posterior"}
    return tables.build(
        "boxes",
        "Probability of the box that the answer is about, in percent, by kind of question",
        known,
        paper,
        _rows(known, paper),
        {f"{kind}: {name}": Column(_mass(kind, of), 1) for kind in kinds for of, name in names.items()},
    )


def _of_type(kind: str) -> Value:
    return lambda result: result["accuracy_by_type"].get(kind)


def _mass(kind: str, of: str) -> Value:
    return lambda result: result["boxes"].get(kind, {"mass": {}})["mass"].get(of)


def _rows(results: Results, paper: Paper) -> list[str]:
    """All finished rows, the paper's first."""
    rows = [*paper.results, *(row for row in results if row not in paper.results)]
    return [row for row in rows if results.get(row)]
