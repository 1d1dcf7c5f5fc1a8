"""Options that nobody gave, and that those that were given win."""

import pytest

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.parsers import train_parser
from onmt_varattn.nmt.presets import DEFAULTS, PRESETS, complete, given_options
from onmt_varattn.training.settings import as_typed


def completed(words, per_pass=1000, validates=True):
    """Options after completion, and what was filled in."""
    parser, args = train_parser(), f"-data x -src_vocab y {words}".split()
    opt = parser.parse_args(args)
    return opt, complete(opt, given_options(parser, args), lambda opt: per_pass, validates)


def test_without_our_options_nothing_is_filled_in():
    opt, filled = completed("")
    assert filled == {}
    assert (opt.optim, opt.learning_rate, opt.train_steps) == ("sgd", 1.0, 100_000)


def test_attention_trains_with_adam_until_validation_stops_getting_better():
    opt, filled = completed("-attention variational")
    assert (opt.optim, opt.learning_rate, opt.encoder_type) == ("adam", 0.001, "brnn")
    assert (opt.valid_steps, opt.save_checkpoint_steps) == (500, 500), "twice per pass"
    assert (opt.early_stopping, opt.decay_on_plateau, opt.early_stopping_criteria) == (4, 1, ["ppl"])
    assert opt.train_steps == 100_000, "100 passes at the most"
    assert opt.param_init == 0.1, "the sizes are OpenNMT-py's, 500"
    assert set(DEFAULTS) <= set(filled)


@pytest.mark.parametrize(("sizes", "init"), [("-rnn_size 128", 0.0), ("-word_vec_size 64", 0.0), ("", 0.1)])
def test_parameters_begin_as_suits_the_sizes(sizes, init):
    assert completed(f"-attention soft {sizes}")[0].param_init == init


@pytest.mark.parametrize(("per_pass", "every"), [(25, 100), (1000, 500), (10**6, 10_000)])
def test_validation_comes_about_twice_per_pass(per_pass, every):
    opt, _ = completed("-attention soft", per_pass)
    assert (opt.valid_steps, opt.save_checkpoint_steps) == (every, every)


def test_an_end_that_was_given_is_the_end():
    opt, filled = completed("-attention soft -train_steps 77")
    assert opt.train_steps == 77
    assert not opt.early_stopping
    assert not {"train_steps", "early_stopping"} & set(filled)


def test_without_validation_nothing_follows_it():
    opt, filled = completed("-attention soft", validates=False)
    assert not {"early_stopping", "decay_on_plateau", "valid_steps"} & set(filled)
    assert opt.train_steps == 30_000


@pytest.mark.parametrize("given", ["-start_decay_steps 9", "-decay_steps 9", "-decay_method noam"])
def test_a_schedule_that_was_given_is_not_mixed_with_another(given):
    assert "decay_on_plateau" not in completed(f"-attention soft {given}")[1]


def test_another_optimiser_keeps_its_own_rate():
    opt, filled = completed("-attention soft -optim sgd")
    assert opt.learning_rate == 1.0
    assert not {"learning_rate", "decay_on_plateau"} & set(filled)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("-rnn_size 64", "dec_rnn_size", 500),  # OpenNMT-py sets both from -rnn_size
        ("-dec_rnn_size 64", "dec_rnn_size", 64),
        ("-dec_rnn_size 64", "enc_rnn_size", 128),
        ("-layers 3", "layers", 3),
        ("-dropout 0.5", "dropout", [0.5]),
        ("-dropout 0", "embedding_dropout", 0),
        ("-dropout 0.5", "embedding_dropout", 0.2),
        ("-dropout 0.5 -embedding_dropout 0.4", "embedding_dropout", 0.4),
        ("-learning_rate 0.01", "learning_rate", 0.01),
        ("-optim adam", "learning_rate", 0.002),
        ("-batch_size 7", "batch_size", 7),
        ("-valid_steps 9", "save_checkpoint_steps", 9),
    ],
)
def test_what_is_given_wins_over_a_preset(given, name, value):
    opt, _ = completed(f"-attention variational -preset small {given}")
    assert getattr(opt, name) == value


def test_options_of_a_configuration_file_are_given(tmp_path):
    (tmp_path / "c.yaml").write_text("dropout: 0.4\npreset: small\nlayers: 2\n")
    opt, filled = completed(f"-attention soft -config {tmp_path}/c.yaml -batch_size 32")
    assert (opt.preset, opt.dropout, opt.layers) == ("small", [0.4], 2)
    assert not {"dropout", "layers", "enc_layers", "batch_size"} & set(filled)


def test_options_with_hyphens_are_given():
    opt, _ = completed("-attention soft -learning-rate 0.5 --train-steps=7")
    assert (opt.learning_rate, opt.train_steps) == (0.5, 7)


def test_the_papers_sizes():
    opt, _ = completed("-attention variational -preset paper")
    sizes = (opt.src_word_vec_size, opt.enc_rnn_size, opt.dec_rnn_size, opt.attention_size, opt.enc_layers)
    assert sizes == (512, 1024, 768, 512, 2)
    assert (opt.learning_rate, opt.batch_size, opt.param_init, opt.dropout) == (0.0003, 6, 0.1, [0.3])
    assert (opt.max_grad_norm, opt.learning_rate_decay, opt.embedding_dropout) == (5, 0.5, 0.0)
    assert opt.train_steps == 30 * 1000


@pytest.mark.parametrize("words", ["-preset paper", "-attention soft -preset transformer"])
def test_presets_that_do_not_go_with_the_model_are_refused(words):
    with pytest.raises(UserError, match=f"-preset {words.split()[-1]}"):
        completed(words)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_sets_options_that_exist_to_values_of_their_type(name):
    """What the log says of a preset can be given on the command line, and means the same."""
    attention = "-attention soft" if PRESETS[name].attention else ""
    _, filled = completed(f"{attention} -preset {name}")
    again = train_parser().parse_args(f"-data x -src_vocab y {attention} {as_typed(filled)}".split())
    assert {option: getattr(again, option) for option in filled} == filled


def test_parsing_twice_leaves_the_defaults_alone():
    parser = train_parser()
    before = {action.dest: action.default for action in parser._actions}
    assert given_options(parser, ["-data", "x", "-src_vocab", "y", "-layers", "3"]) == {
        "data",
        "src_vocab",
        "layers",
    }
    assert {action.dest: action.default for action in parser._actions} == before
