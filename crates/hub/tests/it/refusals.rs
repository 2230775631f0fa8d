//! Answers of the hub that are not files.

use crate::fake::{Fake, ID, text};
use crate::server::Reply;
use distribute_hub::Error;
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn fake() -> Fake {
    Fake::new(&[("config.json", b"{}", false)])
}

#[test]
fn names_that_the_hub_does_not_have_are_explained() {
    watched(|| {
        let fake = fake();
        let error = fake.model().file("none.json").unwrap_err();
        assert!(
            matches!(&error, Error::Status { status: 404, message, .. } if message == "Not here"),
            "{error:?}"
        );
        let error = error.to_string();
        assert!(
            error.contains("/org/name/resolve/main/none.json: the server answered 404 (Not here)"),
            "{error}"
        );
        assert!(error.contains("no such file at this revision"), "{error}");
        assert!(
            text(fake.model().revision("v9").file("config.json")).contains("no such branch, tag or commit")
        );
        assert!(text(fake.settings().model("org/other").file("config.json")).contains("check the names"));
        assert!(!fake.at("refs").exists());
    });
}

#[test]
fn a_missing_token_is_not_a_wrong_one() {
    watched(|| {
        let fake = fake();
        fake.answers(|_, _| Reply::new(401).with("X-Error-Message", "Invalid username or password."));
        let error = text(fake.model().file("config.json"));
        assert!(error.contains("401 (Invalid username or password.); the token is not valid"), "{error}");
        let without = fake.settings().token(None).unwrap().model(ID);
        assert!(text(without.file("config.json")).contains("set HF_TOKEN"));
        fake.answers(|_, _| Reply::new(403).with("X-Error-Code", "GatedRepo").body("Ask for access"));
        assert!(text(fake.model().file("config.json")).contains("accept the conditions"));
    });
}

#[test]
fn too_many_requests_are_repeated_when_the_server_permits() {
    watched(|| {
        let fake = fake();
        let requests = AtomicUsize::new(0);
        fake.answers(move |_, reply| match requests.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::new(429).with("Retry-After", "0"),
            1 => Reply::new(503).with("Retry-After", "0"),
            _ => reply,
        });
        assert!(fake.model().file("config.json").is_ok());
        // The pause is longer than the timeout.
        fake.answers(|_, _| Reply::new(429).with("Retry-After", "3600"));
        fake.hub.requests();
        let error = fake.model().revision("v1").file("config.json").unwrap_err();
        let hour = Duration::from_secs(3600);
        assert!(
            matches!(&error, Error::Status { status: 429, retry_after: Some(pause), .. } if *pause == hour)
        );
        assert!(error.to_string().contains("try again in 3600s"), "{error}");
        assert_eq!(fake.hub.requests().len(), 1);
    });
}

#[test]
fn a_server_with_a_problem_is_asked_five_times() {
    watched(|| {
        let fake = fake();
        fake.answers(|_, _| Reply::new(500));
        let error = text(fake.settings().timeout(Duration::from_millis(50)).model(ID).file("config.json"));
        assert!(error.contains("the server answered 500; the server has a problem"), "{error}");
        assert_eq!(fake.hub.requests().len(), 5);
    });
}

#[test]
fn a_server_of_large_files_that_refuses_is_named_without_its_signature() {
    watched(|| {
        let fake = Fake::new(&[("model.safetensors", b"abc", true)]);
        fake.answers(
            |request, reply| {
                if request.path.starts_with("/cdn/") { Reply::new(403).body("Expired") } else { reply }
            },
        );
        let error = text(fake.model().file("model.safetensors"));
        assert!(
            error.contains("/cdn/") && error.contains("403 (Expired); this server has files of the hub"),
            "{error}"
        );
        assert!(!error.contains("signature"), "{error}");
        // A page for browsers is not shown, and a text that does not arrive is not waited for.
        fake.answers(|request, reply| {
            if request.path.starts_with("/cdn/") { Reply::new(403).body("<html>Forbidden") } else { reply }
        });
        assert!(text(fake.model().file("model.safetensors")).contains("403; this server"));
        fake.answers(|request, reply| {
            let late = Reply { cut: Some(3), stalls: true, ..Reply::new(403).body("Expired") };
            if request.path.starts_with("/cdn/") { late } else { reply }
        });
        let model = fake.settings().timeout(Duration::from_millis(300)).model(ID);
        assert!(text(model.file("model.safetensors")).contains("403 (Exp)"));
    });
}

#[test]
fn a_file_that_is_too_large_is_not_downloaded() {
    watched(|| {
        let fake = Fake::new(&[("model.safetensors", b"abc", true)]);
        let error = text(fake.settings().max_size(2).model(ID).file("model.safetensors"));
        assert!(error.contains("the file has 3 bytes, and the limit is 2"), "{error}");
        assert_eq!(fake.large().len(), 0);
    });
}
