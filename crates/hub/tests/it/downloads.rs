//! Downloads: complete, interrupted, resumed, damaged.

use crate::fake::{Fake, ID, TOKEN, bytes, git, sha256, text};
use distribute_hub::Error;
use distribute_testing::{names_in, watched};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LARGE: usize = 3_000_000;

fn large() -> Fake {
    Fake::new(&[("model.safetensors", &bytes(LARGE), true)])
}

#[test]
fn files_are_where_python_has_them() {
    watched(|| {
        let fake = Fake::new(&[
            ("config.json", b"{}", false),
            ("onnx/a b.onnx", &bytes(LARGE), true),
            ("empty", b"", false),
        ]);
        let model = fake.model();
        assert_eq!(model.commit(), None);
        let config = model.file("config.json").unwrap();
        let commit = format!("{:040x}", 1);
        assert_eq!(config, fake.at(&format!("snapshots/{commit}/config.json")));
        assert_eq!((fs::read(&config).unwrap(), model.commit()), (b"{}".to_vec(), Some(commit.as_str())));
        // The space is encoded, which the fake does not decode.
        fake.answers(|request, reply| {
            assert!(request.path.ends_with("/onnx/a%20b.onnx"), "{request:?}");
            reply
        });
        assert!(text(model.file("onnx/a b.onnx")).contains("no such file"));
        fake.answers(|_, reply| reply);
        assert_eq!(fs::read(model.file("empty").unwrap()).unwrap(), b"");
        let blobs = [git(b""), git(b"{}")];
        let mut found = names_in(&fake.at("blobs"));
        found.sort();
        let mut expected = blobs.to_vec();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(fs::read_to_string(fake.at("refs/main")).unwrap(), commit);
        let locks: Vec<_> = names_in(&fake.cache.path().join(".locks/models--org--name"));
        assert!(locks.contains(&format!("{}.lock", git(b"{}"))));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::read_link(&config).unwrap().to_str().unwrap(),
                format!("../../blobs/{}", git(b"{}"))
            );
            // As others who share the cache need it.
            let mode = |path| fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode(config), mode(fake.at("refs/main")));
        }
    });
}

#[test]
fn a_file_is_downloaded_once() {
    watched(|| {
        let fake = large();
        let model = fake.model();
        let path = model.file("model.safetensors").unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes(LARGE));
        let requests = fake.hub.requests();
        assert!(
            requests
                .iter()
                .all(|request| request.header("authorization") == Some(&format!("Bearer {TOKEN}")))
        );
        assert_eq!((requests.len(), fake.large().len()), (2, 1));
        // The commit is fixed: no request at all.
        assert_eq!(model.file("model.safetensors").unwrap(), path);
        assert_eq!(fake.hub.requests().len(), 0);
        // The branch may have moved: one request.
        assert_eq!(fake.model().file("model.safetensors").unwrap(), path);
        assert_eq!((fake.hub.requests().len(), fake.large().len()), (1, 0));
        assert_eq!(fake.model().revision(format!("{:040x}", 1)).file("model.safetensors").unwrap(), path);
        assert_eq!(fake.hub.requests().len(), 0);
        // Another commit with the same file.
        let commit = fake.commit(2, &[("model.safetensors", &bytes(LARGE), true)]);
        let moved = fake.model().file("model.safetensors").unwrap();
        assert_eq!(moved, fake.at(&format!("snapshots/{commit}/model.safetensors")));
        assert_eq!((fake.hub.requests().len(), fake.large().len()), (1, 0));
        // Damaged by another program: the size is wrong.
        fs::write(fake.at("blobs").join(sha256(&bytes(LARGE))), "x").unwrap();
        fake.commit(3, &[("model.safetensors", &bytes(LARGE), true)]);
        assert_eq!(fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), bytes(LARGE));
    });
}

#[test]
fn a_truncated_response_is_resumed_by_range() {
    watched(|| {
        let fake = large();
        let cuts = AtomicUsize::new(0);
        fake.answers(move |request, mut reply| {
            // The first two responses end early, at which the client has waited half a second each time.
            if request.path.starts_with("/cdn/") && cuts.fetch_add(1, Ordering::SeqCst) < 2 {
                reply.cut = Some(1_100_000);
            }
            reply
        });
        let path = fake.model().file("model.safetensors").unwrap();
        assert_eq!(fs::read(path).unwrap(), bytes(LARGE));
        assert_eq!(fake.large(), ["all", "bytes=1100000-", "bytes=2200000-"]);
        assert_eq!(names_in(&fake.at("blobs")), [sha256(&bytes(LARGE))]);
    });
}

#[test]
fn a_connection_that_stalls_is_given_up_and_resumed() {
    watched(|| {
        let fake = large();
        let stalls = AtomicUsize::new(0);
        fake.answers(move |request, mut reply| {
            if request.path.starts_with("/cdn/") && stalls.fetch_add(1, Ordering::SeqCst) == 0 {
                (reply.cut, reply.stalls) = (Some(1_000_000), true);
            }
            reply
        });
        let model = fake.settings().timeout(Duration::from_millis(500)).model(ID);
        assert_eq!(fs::read(model.file("model.safetensors").unwrap()).unwrap(), bytes(LARGE));
        assert_eq!(fake.large(), ["all", "bytes=1000000-"]);
    });
}

#[test]
fn what_arrived_is_kept_when_all_attempts_fail() {
    watched(|| {
        let fake = large();
        fake.answers(|request, mut reply| {
            if request.path.starts_with("/cdn/") {
                reply.cut = Some(reply.body.len().min(100));
            }
            reply
        });
        let model = fake.settings().timeout(Duration::from_millis(200)).model(ID);
        let error = text(model.file("model.safetensors"));
        assert!(error.contains("after 500 of 3000000 bytes"), "{error}");
        assert!(error.contains("/resolve/") && error.contains("the next call resumes it"), "{error}");
        assert_eq!(fake.large().len(), 5);
        fake.answers(|_, reply| reply);
        assert_eq!(fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), bytes(LARGE));
        assert_eq!(fake.large(), ["bytes=500-"]);
    });
}

#[test]
fn parts_of_earlier_processes_are_used_if_they_are_right() {
    watched(|| {
        let content = bytes(LARGE);
        let partial = format!("blobs/{}.incomplete", sha256(&content));
        let mut too_long = content.clone();
        too_long.push(0);
        let mut damaged = content[..1000].to_vec();
        damaged[0] ^= 1;
        for (left, expected) in [
            (content[..1000].to_vec(), vec!["bytes=1000-"]),
            // All has arrived, and was not renamed.
            (content.clone(), vec![]),
            (too_long, vec!["all"]),
            (damaged, vec!["bytes=1000-", "all"]),
        ] {
            let fake = large();
            fs::create_dir_all(fake.at("blobs")).unwrap();
            fs::write(fake.at(&partial), &left).unwrap();
            assert_eq!(fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), content);
            assert_eq!(fake.large(), expected);
        }
    });
}

#[test]
fn a_server_without_ranges_sends_all_again() {
    watched(|| {
        let content = bytes(LARGE);
        let fake = large();
        fs::create_dir_all(fake.at("blobs")).unwrap();
        fs::write(fake.at(&format!("blobs/{}.incomplete", sha256(&content))), &content[..1000]).unwrap();
        let all = content.clone();
        fake.answers(move |request, reply| {
            if request.path.starts_with("/cdn/") {
                crate::server::Reply::new(200).body(all.clone())
            } else {
                reply
            }
        });
        assert_eq!(fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), content);
        assert_eq!(fake.large(), ["bytes=1000-"]);
    });
}

// INV-24
#[test]
fn a_file_with_another_hash_is_removed() {
    watched(|| {
        let fake = Fake::new(&[("model.safetensors", &bytes(LARGE), true), ("config.json", b"{}", false)]);
        fake.answers(|request, mut reply| {
            if request.method == "GET" && reply.status == 200 {
                reply.body[0] ^= 1;
            }
            reply
        });
        for (name, expected) in [("model.safetensors", sha256(&bytes(LARGE))), ("config.json", git(b"{}"))] {
            let Err(Error::Hash { expected: announced, found, url, .. }) = fake.model().file(name) else {
                panic!("another hash was accepted");
            };
            assert_eq!(announced, expected);
            assert!(
                found != expected && found.len() == expected.len() && url.ends_with(name),
                "{url} {found}"
            );
        }
        assert_eq!(names_in(&fake.at("blobs")), [""; 0]);
        assert!(!fake.at("snapshots").exists());
        fake.answers(|_, reply| reply);
        assert_eq!(fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), bytes(LARGE));
    });
}

// INV-24
#[cfg(unix)]
#[test]
fn a_link_in_the_place_of_a_part_is_not_followed() {
    watched(|| {
        let fake = large();
        fs::create_dir_all(fake.at("blobs")).unwrap();
        let precious = fake.cache.path().join("precious");
        fs::write(&precious, "text").unwrap();
        let partial = fake.at(&format!("blobs/{}.incomplete", sha256(&bytes(LARGE))));
        std::os::unix::fs::symlink(&precious, partial).unwrap();
        assert!(text(fake.model().file("model.safetensors")).contains("a symbolic link, not a file"));
        assert_eq!(fs::read_to_string(precious).unwrap(), "text");
    });
}
