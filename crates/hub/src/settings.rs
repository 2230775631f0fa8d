//! [`Hub`]: the settings of the hub, by default from the environment.

use crate::error::{Error, Result, shown};
use crate::origin::Origin;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::Uri;

/// The default maximum size of a file in bytes: 1 TiB.
const MAX_SIZE: u64 = 1 << 40;
/// The maximum number of bytes that are read from a file with a token.
const MAX_TOKEN: u64 = 4096;

/// The settings of the Hugging Face hub, or of a mirror: its URL, the token, the cache, and limits.
#[derive(Clone, Debug)]
pub struct Hub {
    pub(crate) cache: PathBuf,
    /// The URL of the hub, without a slash at the end.
    pub(crate) endpoint: String,
    pub(crate) origin: Origin,
    pub(crate) token: Option<Token>,
    pub(crate) is_offline: bool,
    pub(crate) timeout: Duration,
    pub(crate) max_size: u64,
}

impl Hub {
    /// Returns the hub that the environment describes, by the variables of Python's `huggingface_hub`: `HF_HOME`,
    /// `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH` and `HF_HUB_OFFLINE`. As in Python,
    /// `TRANSFORMERS_OFFLINE` forbids requests as well, and `XDG_CACHE_HOME` changes the default of `HF_HOME`. Sends no
    /// request.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: a variable or the token in the file is malformed, a variable is not UTF-8, or none of
    ///   `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and the home folder is set.
    /// - [`Error::Io`]: the file with the token cannot be read.
    pub fn new() -> Result<Self> {
        Self::from_environment(&|name| std::env::var_os(name))
    }

    fn from_environment(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name| text(name, variable);
        let user = || Ok(set("HOME")?.or(set("USERPROFILE")?));
        let expanded = |path: String| match path.strip_prefix("~/") {
            Some(rest) => Ok(match user()? {
                Some(user) => Path::new(&user).join(rest),
                None => PathBuf::from(path),
            }),
            None => Ok(PathBuf::from(path)),
        };
        let folder = |name| set(name)?.map(expanded).transpose();
        let home = || {
            if let Some(own) = folder("HF_HOME")? {
                return Ok(Some(own));
            }
            if let Some(shared) = folder("XDG_CACHE_HOME")? {
                return Ok(Some(shared.join("huggingface")));
            }
            Ok(user()?.map(|user| Path::new(&user).join(".cache/huggingface")))
        };
        let cache = match folder("HF_HUB_CACHE")? {
            Some(cache) => cache,
            None => home()?.map(|home| home.join("hub")).ok_or_else(|| Error::Invalid {
                what: "HF_HOME",
                value: String::new(),
                reason: "expected a folder, because HOME is not set".into(),
            })?,
        };
        let token = match set("HF_TOKEN")? {
            Some(token) => Some(Token::parse("HF_TOKEN", &token)?),
            None => {
                let path = match folder("HF_TOKEN_PATH")? {
                    Some(path) => Some(path),
                    None => home()?.map(|home| home.join("token")),
                };
                path.map(|path| Token::read(&path)).transpose()?.flatten()
            }
        };
        let is_true = |name| {
            let is_true =
                |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.trim().to_uppercase().as_str());
            Ok(set(name)?.is_some_and(is_true))
        };
        let endpoint = set("HF_ENDPOINT")?.unwrap_or_else(|| "https://huggingface.co".into());
        let (endpoint, origin) = checked("HF_ENDPOINT", &endpoint)?;
        Ok(Self {
            cache,
            endpoint,
            origin,
            token,
            is_offline: is_true("HF_HUB_OFFLINE")? || is_true("TRANSFORMERS_OFFLINE")?,
            timeout: DEFAULT_TIMEOUT,
            max_size: MAX_SIZE,
        })
    }

    /// Sets the folder of the cache. The default is `HF_HUB_CACHE`, or else `hub` in the folder `HF_HOME`.
    #[must_use]
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = folder.into();
        self
    }

    /// Sets the URL of the hub or of a mirror. The default is `HF_ENDPOINT`, or else `https://huggingface.co`.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: this is not an absolute URL with http or https, or it has a user, a query or a fragment.
    pub fn endpoint(mut self, url: &str) -> Result<Self> {
        (self.endpoint, self.origin) = checked("the endpoint", url)?;
        Ok(self)
    }

    /// Sets the token for private and gated repositories; `None` sends none. The default is the value of `HF_TOKEN` or,
    /// if that is not set, the contents of the file that `HF_TOKEN_PATH` names, or else of `$HF_HOME/token`.
    ///
    /// The token is sent to the hub alone, over https or to an address of this machine.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the token contains characters that are not allowed in a token. The error does not contain
    ///   the token.
    pub fn token(mut self, token: Option<&str>) -> Result<Self> {
        self.token = token.map(|token| Token::parse("the token", token)).transpose()?;
        Ok(self)
    }

    /// Sets whether only the cache is used, without any request. By default, `HF_HUB_OFFLINE` and
    /// `TRANSFORMERS_OFFLINE` determine this.
    #[must_use]
    pub fn offline(mut self, is_offline: bool) -> Self {
        self.is_offline = is_offline;
        self
    }

    /// Sets the timeout of each wait: for a connection, a response, the next bytes, and another process that downloads
    /// the same file without progress. By default it is 60 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum size of a file in bytes. By default it is 1 TiB.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = bytes;
        self
    }

    /// Returns the token if it can be sent without other machines reading it.
    pub(crate) fn token_to_send(&self) -> Option<&Token> {
        self.token.as_ref().filter(|_| self.origin.is_private())
    }
}

/// Returns the value of a variable; `None` if it is not set or blank.
fn text(name: &'static str, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<String>> {
    let value = variable(name).map(OsString::into_string).transpose();
    let value = value.map_err(|value| Error::Invalid {
        what: name,
        value: if name == "HF_TOKEN" { String::new() } else { shown(&value.to_string_lossy()) },
        reason: "expected text in UTF-8".into(),
    })?;
    Ok(value.filter(|value| !value.trim().is_empty()))
}

/// Checks the URL of a hub. Returns it without slashes at the end.
fn checked(what: &'static str, url: &str) -> Result<(String, Origin)> {
    let url = url.trim().trim_end_matches('/');
    let parsed = url.parse::<Uri>().ok().filter(|parsed| parsed.query().is_none() && !url.contains('#'));
    match parsed.as_ref().and_then(Origin::of) {
        Some(origin) => Ok((url.into(), origin)),
        None => Err(Error::Invalid {
            what,
            // A user and a password are not shown.
            value: shown(url.rsplit('@').next().unwrap_or_default()),
            reason: "expected a URL such as https://huggingface.co, without a user or a query".into(),
        }),
    }
}

/// A token for the hub. `Debug` does not print it.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    fn parse(what: &'static str, text: &str) -> Result<Self> {
        let text = text.trim();
        if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(text.into()));
        }
        let reason = "expected printable ASCII without spaces".into();
        Err(Error::Invalid { what, value: String::new(), reason })
    }

    /// Reads the token that Python's `hf auth login` has stored at `path`; `None` if the file doesn't exist or is
    /// empty.
    fn read(path: &Path) -> Result<Option<Self>> {
        let mut text = String::new();
        match distribute_files::open(path).and_then(|file| file.take(MAX_TOKEN).read_to_string(&mut text)) {
            Ok(_) if text.trim().is_empty() => Ok(None),
            Ok(_) => Self::parse("the file HF_TOKEN_PATH or HF_HOME/token", &text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("reading", path)(error)),
        }
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Hub> {
        let value = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Hub::from_environment(&value)
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_an_error_and_not_ignored() {
        use std::os::unix::ffi::OsStringExt;
        let with = |name: &str| {
            Hub::from_environment(&|asked| match asked {
                _ if asked == name => Some(OsString::from_vec(b"/caf\xe9".to_vec())),
                "HOME" => Some("/home/a".into()),
                _ => None,
            })
        };
        for name in ["HOME", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH"]
            .into_iter()
            .chain(["XDG_CACHE_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
        {
            let error = with(name).unwrap_err();
            assert!(matches!(&error, Error::Invalid { what, .. } if *what == name), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("UTF-8") && text.contains("caf") == (name != "HF_TOKEN"), "{text}");
        }
        // It is not used.
        assert!(with("USERPROFILE_OTHER").is_ok());
    }

    #[test]
    fn variables_are_those_of_python() {
        let hub = with(&[("HOME", "/home/a")]).unwrap();
        assert_eq!(hub.cache, Path::new("/home/a/.cache/huggingface/hub"));
        assert_eq!((hub.endpoint.as_str(), hub.is_offline), ("https://huggingface.co", false));
        let hub = with(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")]).unwrap();
        assert_eq!(hub.cache, Path::new("/c/huggingface/hub"));
        let hub = with(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c"), ("HF_HOME", "~/h")]).unwrap();
        assert_eq!(hub.cache, Path::new("/home/a/h/hub"));
        let hub =
            with(&[("HF_HUB_CACHE", "/x"), ("HF_ENDPOINT", "http://m/hf//"), ("HF_HUB_OFFLINE", "yes")])
                .unwrap();
        assert_eq!((hub.cache.as_path(), hub.endpoint.as_str()), (Path::new("/x"), "http://m/hf"));
        assert!(hub.is_offline && !with(&[("HOME", "/"), ("HF_HUB_OFFLINE", "0")]).unwrap().is_offline);
        assert!(with(&[("HOME", "/"), ("TRANSFORMERS_OFFLINE", "1")]).unwrap().is_offline);
        assert!(with(&[]).unwrap_err().to_string().contains("HF_HOME"));
        for bad in ["huggingface.co", "ftp://a", "https://a?b", "https://a#b", "https://"] {
            let error = with(&[("HOME", "/"), ("HF_ENDPOINT", bad)]).unwrap_err().to_string();
            assert!(error.starts_with("HF_ENDPOINT"), "{bad}: {error}");
        }
        let error = with(&[("HOME", "/"), ("HF_ENDPOINT", "https://me:secret@a")]).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_token_is_read_and_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap();
        assert!(with(&[("HF_HOME", path)]).unwrap().token.is_none());
        std::fs::write(home.path().join("token"), "hf_secret\n").unwrap();
        let hub = with(&[("HF_HOME", path)]).unwrap();
        assert_eq!(hub.token_to_send().unwrap().header(), "Bearer hf_secret");
        assert!(!format!("{hub:?}").contains("secret"));
        let hub = with(&[("HF_HOME", path), ("HF_TOKEN", "hf_other")]).unwrap();
        assert_eq!(hub.token_to_send().unwrap().header(), "Bearer hf_other");
        // Others could read it on its way.
        assert!(hub.clone().endpoint("http://mirror").unwrap().token_to_send().is_none());
        assert!(hub.clone().endpoint("http://127.0.0.1:1").unwrap().token_to_send().is_some());
        assert!(hub.token(None).unwrap().token_to_send().is_none());
        let error = with(&[("HF_HOME", path), ("HF_TOKEN", "hf_secret\r\nx: y")]).unwrap_err().to_string();
        assert!(error.starts_with("HF_TOKEN") && !error.contains("secret"), "{error}");
    }
}
