//! Tests: files from the cache if the hub is not used.

use crate::fake::{Fake, ID, text};
use crate::server::Reply;
use distribute_hub::Hub;
use distribute_testing::watched;
use std::fs;
use std::time::Duration;

#[test]
fn offline_only_the_cache_is_used() {
    watched(|| {
        let fake = Fake::new(&[("config.json", b"{}", false)]);
        let offline = || fake.settings().offline(true).model(ID);
        let error = text(offline().file("config.json"));
        assert!(error.contains("config.json of org/name at main is not in"), "{error}");
        assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
        let path = fake.model().file("config.json").unwrap();
        fake.hub.requests();
        assert_eq!(offline().file("config.json").unwrap(), path);
        assert_eq!(offline().revision(format!("{:040x}", 1)).file("config.json").unwrap(), path);
        assert!(text(offline().file("none.json")).contains("none.json of org/name"));
        assert!(text(offline().revision("v1").file("config.json")).contains("at v1"));
        assert_eq!(fake.hub.requests().len(), 0);
    });
}

#[test]
fn a_hub_that_cannot_be_reached_leaves_the_cache() {
    watched(|| {
        let fake = Fake::new(&[("config.json", b"{}", false)]);
        let path = fake.model().file("config.json").unwrap();
        let away = |address: &str| {
            let hub = Hub::new()
                .unwrap()
                .offline(false)
                .cache(fake.cache.path())
                .timeout(Duration::from_millis(50));
            hub.endpoint(address).unwrap().model(ID)
        };
        // A port that was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let model = away(&format!("http://{free}"));
        assert_eq!(model.file("config.json").unwrap(), path);
        assert_eq!(model.commit(), Some(format!("{:040x}", 1).as_str()));
        let error = text(away(&format!("http://{free}")).file("none.json"));
        assert!(error.contains(&free.to_string()) && error.contains("HF_HUB_OFFLINE=1"), "{error}");
        // One request, and not five: the file is there.
        fake.answers(|_, _| Reply::new(503));
        fake.hub.requests();
        assert_eq!(fake.model().file("config.json").unwrap(), path);
        assert_eq!(fake.hub.requests().len(), 1);
        // A refusal is no failure of the network.
        fake.answers(|_, _| Reply::new(403));
        assert!(text(fake.model().file("config.json")).contains("403"));
        // A link of the cache that leads nowhere is no file.
        fs::remove_dir_all(fake.at("blobs")).unwrap();
        fake.answers(|_, _| Reply::new(503).with("Retry-After", "0"));
        assert!(text(fake.model().file("config.json")).contains("503"));
    });
}
