//! Files of pretrained models from the [Hugging Face hub](https://huggingface.co).
//!
//! ```no_run
//! use distribute_hub::Hub;
//!
//! let model = Hub::new()?.model("google-bert/bert-base-uncased");
//! let config = model.file("config.json")?;    // a path in the cache
//! let weights = model.safetensors()?;         // one file, or all files of a large model
//! # Ok::<(), distribute_hub::Error>(())
//! ```
//!
//! - The cache is that of Python's `huggingface_hub`, with the same folders, names and locks. A file that either of
//!   them has downloaded is not downloaded again.
//! - All files of one [`Repository`] value are of one commit, even if the branch moves in the meantime.
//! - A file gets its name only after its bytes have been verified with the hash that the hub announced: SHA-256 for
//!   large files, git's SHA-1 for small ones. An interrupted download is resumed, even by another process. Of several
//!   processes that need a file, one downloads it, and the others wait.
//! - A token is sent to the hub alone, and never to the server to which the hub redirects a download.
//! - Each wait has a deadline: [`Hub::timeout`].
//!
//! # Environment
//!
//! | variable | effect | default |
//! |---|---|---|
//! | `HF_HOME` | the folder of the cache and the token | `~/.cache/huggingface`, or `$XDG_CACHE_HOME/huggingface` |
//! | `HF_HUB_CACHE` | the cache | `$HF_HOME/hub` |
//! | `HF_ENDPOINT` | the URL of the hub, or of a mirror | `https://huggingface.co` |
//! | `HF_TOKEN` | the token for private and gated models | the contents of `$HF_HOME/token`, or of the file `HF_TOKEN_PATH` |
//! | `HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE` | `1`: only the cache is used, without any request | `0` |
//! | `HTTPS_PROXY`, `NO_PROXY` | a proxy, and the hosts without one | none |
//!
//! In reading order:
//!
//! | module | contents |
//! |---|---|
//! | `settings` | [`Hub`]: settings, by default from the environment |
//! | `repository` | [`Repository`]: the files of a model or a dataset |
//! | `index` | the files that an index of weights lists |
//! | `names` | kinds of repositories, and checks of names before they are used in a path or a URL |
//! | `cache` | the folders of the cache |
//! | `lock` | waits for another process that downloads the same file |
//! | `metadata` | the commit, hash and size of a file, from the headers of a response |
//! | `download` | one file: resumed, verified, renamed |
//! | `digest` | the two hashes |
//! | `attempts` | the repetition of requests that failed temporarily |
//! | `client` | requests, redirects, and who receives the token |
//! | `origin` | URLs: their servers, and what errors show of them |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]

mod attempts;
mod cache;
mod client;
mod digest;
mod download;
mod error;
mod index;
mod lock;
mod metadata;
mod names;
mod origin;
mod repository;
mod settings;

pub use error::{Error, Result};
pub use repository::Repository;
pub use settings::Hub;
