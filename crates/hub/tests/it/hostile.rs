//! Servers and programs that try to leave the cache, or to keep a client busy.

use crate::fake::{Fake, bytes, text};
use crate::server::Reply;
use distribute_testing::{names_in, watched};

fn fake() -> Fake {
    Fake::new(&[("config.json", b"{}", false), ("model.safetensors", &bytes(300_000), true)])
}

#[test]
fn names_that_leave_the_cache_are_refused_before_any_request() {
    watched(|| {
        let fake = fake();
        for name in ["../x", "/etc/passwd", "a/../../x", "a\\x", "", "a\r\nb"] {
            assert!(text(fake.model().file(name)).starts_with("the file"), "{name:?}");
        }
        for revision in ["..", "../../x", "/x", "a?b", ""] {
            assert!(
                text(fake.model().revision(revision).file("x")).starts_with("the revision"),
                "{revision:?}"
            );
        }
        for id in ["..", "../x", "a/b/c", "http://x", "a b"] {
            assert!(text(fake.settings().model(id).file("x")).starts_with("the repository"), "{id:?}");
        }
        assert_eq!(fake.hub.requests().len(), 0);
        assert_eq!(names_in(fake.cache.path()), [""; 0]);
    });
}

#[test]
fn headers_that_are_no_metadata_are_refused() {
    watched(|| {
        let fake = fake();
        for (name, value, expected) in [
            ("X-Repo-Commit", "../../../../tmp/x", "in X-Repo-Commit, found \"../../../../tmp/x\""),
            ("X-Repo-Commit", "main", "40 hexadecimal digits"),
            ("X-Linked-Etag", "\"../../x\"", "a SHA-256, or a SHA-1 of git"),
            ("X-Linked-Size", "-1", "the size of the file"),
            ("X-Linked-Size", "99999999999999999999", "the size of the file"),
        ] {
            fake.answers(move |_, reply| reply.with(name, value));
            let error = text(fake.model().file("model.safetensors"));
            assert!(error.contains("/resolve/main/model.safetensors") && error.contains(expected), "{error}");
        }
        // The commit that was asked for is not that of the answer.
        fake.answers(|_, reply| reply.with("X-Repo-Commit", "f".repeat(40)));
        let error = text(fake.model().revision(format!("{:040x}", 1)).file("model.safetensors"));
        assert!(error.contains("the commit that was requested"), "{error}");
        assert_eq!(names_in(fake.cache.path()), [""; 0]);
    });
}

#[test]
fn redirects_end_and_lead_to_servers() {
    watched(|| {
        let fake = fake();
        for location in ["file:///etc/passwd", "//127.0.0.1/x", "x", "", "http://me@127.0.0.1/x"] {
            fake.answers(move |_, _| Reply::new(302).with("Location", location));
            assert!(text(fake.model().file("config.json")).contains("expected a redirect to"), "{location}");
        }
        fake.answers(|_, _| Reply::new(302));
        assert!(text(fake.model().file("config.json")).contains("expected a redirect to"));
        // Endless redirects: on the hub, and between the two servers.
        fake.answers(|request, _| Reply::new(307).with("Location", format!("{}x", request.path)));
        fake.hub.requests();
        assert!(text(fake.model().file("config.json")).contains("more than 8 redirects"));
        assert_eq!(fake.hub.requests().len(), 9);
        fake.answers(|request, reply| {
            if request.path.starts_with("/cdn/") {
                return Reply::new(307).with("Location", request.path.clone());
            }
            reply
        });
        let error = text(fake.model().file("model.safetensors"));
        assert!(error.contains("/cdn/") && error.contains("more than 8 redirects"), "{error}");
        let cdn = fake.cdn.address;
        // Metadata are requested only from the hub.
        fake.answers(move |_, _| Reply::new(302).with("Location", format!("http://{cdn}/x")));
        fake.cdn.requests();
        assert!(text(fake.model().file("config.json")).contains("found none"));
        assert_eq!(fake.cdn.requests().len(), 0);
    });
}

type Change = fn(Reply) -> Reply;

#[test]
fn bodies_that_are_not_the_file_are_refused() {
    watched(|| {
        let of_cdn = |change: Change| {
            move |request: &crate::server::Request, reply: Reply| {
                if request.path.starts_with("/cdn/") { change(reply) } else { reply }
            }
        };
        let cases: [(Change, &str); 5] = [
            (
                |reply| reply.with("Content-Encoding", "gzip"),
                "a file without Content-Encoding, found \"gzip\"",
            ),
            (|reply| reply.body(bytes(300_001)), "in Content-Length, found \"300001\""),
            (
                |reply| Reply { without_length: true, ..reply.body([7; 300_001]) },
                "a body of the announced size, found more",
            ),
            (|reply| Reply { status: 206, ..reply }, "in Content-Range, found none"),
            (|reply| Reply { status: 203, ..reply }, "the status 200 or 206"),
        ];
        for (change, expected) in cases {
            let fake = self::fake();
            fake.answers(of_cdn(change));
            let error = text(fake.model().file("model.safetensors"));
            assert!(error.contains(expected), "{error}");
            // A later download succeeds: no data of the failed one is used.
            fake.answers(|_, reply| reply);
            assert_eq!(
                std::fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(),
                bytes(300_000)
            );
        }
        // The rest of another file.
        let fake = self::fake();
        let partial = fake.at(&format!("blobs/{}.incomplete", crate::fake::sha256(&bytes(300_000))));
        std::fs::create_dir_all(fake.at("blobs")).unwrap();
        std::fs::write(&partial, &bytes(300_000)[..10]).unwrap();
        fake.answers(of_cdn(|reply| reply.with("Content-Range", "bytes 9-299999/300000")));
        assert!(text(fake.model().file("model.safetensors")).contains("found \"bytes 9-299999/300000\""));
        // A server that has fewer bytes than it announces: all is asked for again.
        fake.answers(
            |request, reply| if request.header("range").is_some() { Reply::new(416) } else { reply },
        );
        assert_eq!(std::fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), bytes(300_000));
    });
}

#[test]
fn headers_without_end_are_not_kept() {
    watched(|| {
        let fake = fake();
        fake.answers(|_, reply| reply.with("X-Long", "x".repeat(1 << 20)));
        assert!(text(fake.model().file("config.json")).contains("expected a response of HTTP 1.1"));
    });
}
