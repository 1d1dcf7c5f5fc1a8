"""Small scenes, prepared: data that a model of visual question answering can be trained on in a moment."""

from onmt_varattn.bin.vqa import preprocess as vqa_preprocess
from onmt_varattn.vqa.scenes import SceneSettings, write_scenes

SIZES = "-word_vec_size 8 -rnn_size 12 -attention_size 10 -answer_vec_size 6"


def prepare(directory, **settings):
    """Write scenes and what vqa_preprocess makes of them; returns the prefix."""
    chosen = {"train_images": 40, "valid_images": 20, "feature_size": 32, "seed": 4, **settings}
    write_scenes(SceneSettings(**chosen), f"{directory}/scenes")
    words = [f"-image_features {directory}/scenes/trainval.tsv -save_data {directory}/data"]
    words.append("-answer_min_frequency 2")
    for part, name in (("train", "train2014"), ("valid", "val2014")):
        words.append(f"-{part}_questions {directory}/scenes/v2_OpenEnded_mscoco_{name}_questions.json")
        words.append(f"-{part}_annotations {directory}/scenes/v2_mscoco_{name}_annotations.json")
    vqa_preprocess.main(" ".join(words).split())
    return f"{directory}/data"
