//! An HTTP client that sends requests with the exact URL that was given, including its signature, user and
//! password.

use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpService, ReqwestConnector,
};
use std::future::Future;
use std::pin::Pin;
use url::Url;

/// A connector that sends all requests to one URL, exactly as it was given.
#[derive(Debug)]
pub(super) struct AsGiven {
    target: Target,
}

/// The URL of all requests. Debug output does not contain it.
#[derive(Clone)]
struct Target {
    /// The URL without user and password.
    url: String,
    /// The value of the header with the user and the password, if the URL has them.
    authorization: Option<String>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl AsGiven {
    pub(super) fn new(url: &Url) -> Self {
        let mut plain = without_user(url);
        plain.set_fragment(None);
        let has_user = !url.username().is_empty() || url.password().is_some();
        let user = || {
            let mut user = decoded(url.username());
            user.push(b':');
            user.extend(decoded(url.password().unwrap_or_default()));
            format!("Basic {}", base64(&user))
        };
        Self { target: Target { url: plain.into(), authorization: has_user.then(user) } }
    }
}

/// Returns the URL without its user and password.
pub(super) fn without_user(url: &Url) -> Url {
    let mut plain = url.clone();
    // An error would mean that the URL has no host. Such URLs are refused before.
    let _ = plain.set_username("");
    let _ = plain.set_password(None);
    plain
}

impl HttpConnector for AsGiven {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { client, target: self.target.clone() }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    target: Target,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Service {
    fn call<'s, 'a>(&'s self, mut request: HttpRequest) -> Answer<'a>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            let wrong = |error| HttpError::new_boxed(HttpErrorKind::Request, error);
            *request.uri_mut() = self.target.url.parse().map_err(|error| wrong(Box::new(error) as _))?;
            if let Some(authorization) = &self.target.authorization {
                let value = authorization.parse().map_err(|error| wrong(Box::new(error) as _))?;
                request.headers_mut().insert("authorization", value);
            }
            self.client.execute(request).await
        })
    }
}

/// Decodes a part of a URL, in which bytes may be escaped as in `%41`.
fn decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let hex = more.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = more.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    bytes
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number =
            three.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let six = (number >> (18 - 6 * digit)) as usize & 63;
            let shown = DIGITS.get(six).filter(|_| digit <= three.len());
            text.push(shown.map_or('=', |digit| char::from(*digit)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_become_a_header() {
        let given = |url: &str| AsGiven::new(&Url::parse(url).unwrap()).target;
        let target = given("https://Aladdin:open%20sesame@host:81/a%20b/c+d//e?X-Amz=1%2F2&y#part");
        assert_eq!(target.url, "https://host:81/a%20b/c+d//e?X-Amz=1%2F2&y");
        assert_eq!(target.authorization.as_deref(), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        assert_eq!(given("http://host/a").authorization, None);
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(decoded("%41%zz%"), b"A%zz%");
        assert!(
            !format!("{:?}", AsGiven::new(&Url::parse("http://u:secret@h/?sig=abc").unwrap()))
                .contains("sec")
        );
    }
}
