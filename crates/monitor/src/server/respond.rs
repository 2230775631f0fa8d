//! HTTP responses as bytes, built by pure functions.

use super::request::Resource;
use crate::{Report, exposition, health};

/// The page for browsers, in a single file. It requests `/status.json` and shows the result.
const PAGE: &str = include_str!("../page.html");

/// Returns the response to a request. `body` is `false` if only the header was requested. `report` is called if the
/// response depends on the report.
pub(super) fn answer(resource: Resource, body: bool, report: impl FnOnce() -> Report) -> Vec<u8> {
    let (kind, content) = match resource {
        Resource::Page => ("text/html; charset=utf-8", PAGE.to_string()),
        Resource::Status => match serde_json::to_string(&report()) {
            Ok(text) => ("application/json", text),
            Err(error) => return refusal(500, &error.to_string()),
        },
        Resource::Metrics => (exposition::CONTENT_TYPE, exposition(&report())),
        Resource::Health => return probed(health::alive(&report()), body),
        Resource::Readiness => return probed(health::ready(&report()), body),
    };
    written(200, kind, &content, body)
}

/// Returns the response to a probe: 200, or 503 with the reason.
fn probed(outcome: Result<(), String>, body: bool) -> Vec<u8> {
    let (code, text) = match outcome {
        Ok(()) => (200, "ok".to_owned()),
        Err(why) => (503, why),
    };
    written(code, "text/plain; charset=utf-8", &format!("{text}\n"), body)
}

/// Returns the response to a rejected request.
pub(super) fn refusal(code: u16, why: &str) -> Vec<u8> {
    written(code, "text/plain; charset=utf-8", &format!("{why}\n"), true)
}

/// Returns the response to a connection that is rejected because there are too many.
pub(super) fn busy() -> Vec<u8> {
    refusal(503, "too many connections: try again")
}

fn written(code: u16, kind: &str, content: &str, body: bool) -> Vec<u8> {
    let reason = match code {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    // The page loads only the report, cannot be framed, and cannot be read by other sites.
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\r\n",
        content.len()
    );
    let mut bytes = head.into_bytes();
    if body {
        bytes.extend_from_slice(content.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::busy as report;

    fn text(bytes: Vec<u8>) -> (String, String) {
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_string(), body.to_string())
    }

    #[test]
    fn each_response_has_its_type_and_length() {
        for (resource, kind) in [
            (Resource::Page, "text/html"),
            (Resource::Status, "application/json"),
            (Resource::Metrics, "text/plain"),
        ] {
            let (head, body) = text(answer(resource, true, report));
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Type: {kind}")), "{head}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            let (same, nothing) = text(answer(resource, false, report));
            assert_eq!((same, nothing), (head, String::new()));
        }
    }

    #[test]
    fn probes_are_answered_with_a_code() {
        let hung = || Report { age: 100., ..report() };
        for resource in [Resource::Health, Resource::Readiness] {
            let (head, body) = text(answer(resource, true, report));
            assert!(head.starts_with("HTTP/1.1 200 ") && body == "ok\n", "{head} {body}");
            let (head, body) = text(answer(resource, true, hung));
            assert!(head.starts_with("HTTP/1.1 503 ") && body == "no report for 100 s\n", "{head} {body}");
        }
    }

    // INV-62
    #[test]
    fn the_page_has_nothing_of_elsewhere_and_makes_no_html_of_text() {
        for part in [
            "http://",
            "https://",
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "src=",
            "@import",
        ] {
            let allowed = PAGE.matches("http://www.w3.org/2000/svg").count();
            let found = PAGE.matches(part).count();
            assert_eq!(found, if part == "http://" { allowed } else { 0 }, "{part}");
        }
        assert!(PAGE.len() < 60_000);
    }
}
