//! The handling of URLs as text: recognizing them, hiding their secrets, and escaping names in them.

/// Returns whether a text begins with a scheme (letters, digits and `+-.`) and `://`.
pub(super) fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Escapes the name of an object for use as the last part of a URL. Reserved characters become escapes such as
/// `%23`.
#[cfg(feature = "object-store")]
pub(super) fn in_url(name: &str) -> String {
    let escaped = |c: char| "%?#\\ \"<>`{}|^".contains(c) || c.is_ascii_control();
    let shown = |c: char| if escaped(c) { format!("%{:02X}", u32::from(c)) } else { c.to_string() };
    name.chars().map(shown).collect()
}

/// Returns a URL without the parts that may be secret: the user and password before the host, and signatures and
/// tokens after the path. Returns other text unchanged.
pub(super) fn redact(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
        return text.into();
    };
    // The `?` of a glob is indistinguishable from that of a query, so both are hidden.
    let (place, hidden) = match rest.find(['?', '#']) {
        Some(end) => (rest.get(..end).unwrap_or_default(), "?…"),
        None => (rest, ""),
    };
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}{path}{hidden}"),
        None => format!("{scheme}://{host}{path}{hidden}"),
    }
}

/// Returns a library's message about a URL without the URL's secrets. The message may quote the URL as it was
/// given, or in another form.
pub(super) fn redact_message(url: &str, message: &str) -> String {
    let mut text = message.to_string();
    if let Some((_, query)) = url.split_once('?').filter(|(_, query)| !query.is_empty()) {
        text = text.replace(query, "…");
    }
    let ends = |c: char| c.is_whitespace() || "\"'`<>()".contains(c);
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find("://") {
        let start = rest.get(..at).and_then(|before| before.rfind(ends)).map_or(0, |space| space + 1);
        let end = rest.get(at..).and_then(|after| after.find(ends)).map_or(rest.len(), |end| at + end);
        out += rest.get(..start).unwrap_or_default();
        out += &redact(rest.get(start..end).unwrap_or_default());
        rest = rest.get(end..).unwrap_or_default();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_url_only_with_a_scheme() {
        for url in ["s3://b/k", "https://h/p?q", "file:///p", "memory://"] {
            assert!(is_url(url), "{url}");
        }
        for path in ["", "a/b.csv", "://", "a b://c", "1://", "c:\\a", "/a://b"] {
            assert!(!is_url(path), "{path}");
        }
    }

    #[test]
    fn neither_passwords_nor_signatures_are_shown() {
        for (url, shown) in [
            ("https://me:pass@host:80/a@b/c.csv?sig=abc#x", "https://…@host:80/a@b/c.csv?…"),
            ("s3://bucket/key", "s3://bucket/key"),
            ("https://token@host", "https://…@host"),
            ("https://host?sig=a/b@c", "https://host?…"),
            ("data/a@b?.csv", "data/a@b?.csv"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }

    #[test]
    fn secrets_are_not_in_errors_of_others() {
        let url = "https://me:pass@host/a.csv?sig=abc";
        for (said, shown) in [
            ("no answer", "no answer"),
            ("GET /a.csv?sig=abc failed", "GET /a.csv?… failed"),
            ("for url (https://me:pass@host/a.csv?sig=abc): 403", "for url (https://…@host/a.csv?…): 403"),
            ("\"https://me:pass@host/\" \"http://x?y=ä\"", "\"https://…@host/\" \"http://x?…\""),
            ("://", "://"),
        ] {
            assert_eq!(redact_message(url, said), shown);
        }
    }
}
