//! Resolvers against a mock of the API on this machine.

#![cfg(all(feature = "gce", feature = "kubernetes"))]
#![allow(clippy::unwrap_used, clippy::panic)]

use distribute_cluster::http::{Client, Http, Request};
use distribute_cluster::resolver::{
    ClusterResolver, GceClusterResolver, GceOptions, KubernetesAccess, KubernetesClusterResolver,
    KubernetesOptions,
};
use distribute_cluster::{ClusterError, Job};
use distribute_testing::watched;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// A received request: its first line, its headers in lower case, its body.
#[derive(Debug)]
struct Asked {
    line: String,
    headers: Vec<String>,
    body: String,
}

fn read(stream: &TcpStream) -> Asked {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_ascii_lowercase()),
        }
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    Asked { line: lines.remove(0), headers: lines, body: String::from_utf8(body).unwrap() }
}

/// Starts a server that gives these answers in turn, each on its own connection. The thread returns the requests.
fn serve(answers: Vec<(u16, String)>) -> (SocketAddr, JoinHandle<Vec<Asked>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let answer = |(status, body): (u16, String)| {
            let (mut stream, _) = listener.accept().unwrap();
            let asked = read(&stream);
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            stream.write_all((head + &body).as_bytes()).unwrap();
            asked
        };
        answers.into_iter().map(answer).collect()
    });
    (address, server)
}

fn client() -> Client {
    Client::new(Duration::from_secs(30))
}

// RES-5
#[test]
fn res_5_pods_are_asked_for_with_the_token() {
    watched(|| {
        let pod = |name: &str, ip: &str| {
            format!(
                r#"{{"metadata": {{"name": "{name}"}}, "status": {{"phase": "Running", "podIP": "{ip}"}}}}"#
            )
        };
        let pods = format!(r#"{{"items": [{}, {}]}}"#, pod("w-1", "10.0.0.2"), pod("w-0", "10.0.0.1"));
        let (address, server) = serve(vec![(200, pods)]);
        let access = KubernetesAccess { url: format!("http://{address}"), token: "t0ken".into() };
        let environment = [("HOSTNAME", "w-1")];
        let options = KubernetesOptions::default();
        let resolver =
            KubernetesClusterResolver::with_access(options, &access, &client(), &environment).unwrap();
        assert_eq!(resolver.world(1).unwrap().to_string(), "worker 1 of 2, 1 replica each");
        let asked = server.join().unwrap();
        assert_eq!(asked[0].line, "get /api/v1/pods?labelselector=job-name%3dtensorflow http/1.1");
        assert!(asked[0].headers.contains(&"authorization: bearer t0ken".to_string()), "{asked:?}");
    });
}

// RES-6
#[test]
fn res_6_metadata_and_api_are_asked_in_turn() {
    watched(|| {
        let ok = |body: &str| (200, body.to_string());
        let instance = r#"{"items": [{"instance": "https://elsewhere/instances/a", "status": "RUNNING"}]}"#;
        let (address, server) = serve(vec![
            ok("my-project"),
            ok("projects/1/zones/my-zone"),
            ok(r#"{"access_token": "t0ken"}"#),
            ok(instance),
            ok(r#"{"networkInterfaces": [{"networkIP": "10.0.0.9"}]}"#),
            ok("10.0.0.9"),
        ]);
        let options = GceOptions { api: format!("http://{address}"), ..GceOptions::new("group", 2222) };
        let host = address.to_string();
        let resolver =
            GceClusterResolver::with_http(options, &client(), &[("GCE_METADATA_HOST", host.as_str())])
                .unwrap();
        assert_eq!(resolver.task(), Some(Job::Worker.task(0)));
        assert_eq!(resolver.master().unwrap(), "grpc://10.0.0.9:2222");
        let asked = server.join().unwrap();
        assert!(asked[0].headers.contains(&"metadata-flavor: google".to_string()));
        let zone = "/compute/v1/projects/my-project/zones/my-zone";
        assert_eq!(asked[3].line, format!("post {}/instancegroups/group/listinstances http/1.1", zone));
        assert_eq!(asked[3].body, r#"{"instanceState":"RUNNING"}"#);
        assert_eq!(asked[4].line, format!("get {zone}/instances/a http/1.1"));
        let with_token = |asked: &Asked| asked.headers.iter().any(|line| line.contains("t0ken"));
        assert_eq!(
            asked.iter().map(with_token).collect::<Vec<_>>(),
            [false, false, false, true, true, false]
        );
    });
}

#[test]
fn a_refusal_a_redirect_and_silence_are_errors() {
    watched(|| {
        let access = |address: SocketAddr| KubernetesAccess {
            url: format!("http://{address}"),
            token: "t0ken".into(),
        };
        let refused = |address, client: &Client| {
            let options = KubernetesOptions::default();
            KubernetesClusterResolver::with_access(options, &access(address), client, &[]).unwrap_err()
        };
        let (address, server) = serve(vec![(403, "pods is forbidden".into())]);
        let error = refused(address, &client());
        assert!(matches!(&error, ClusterError::Forbidden { .. }), "{error}");
        assert!(
            error.to_string().contains("status 403: pods is forbidden; the service account needs a role")
        );
        assert!(!error.to_string().contains("t0ken"));
        server.join().unwrap();

        // A redirect would take the token elsewhere.
        let (address, server) = serve(vec![(302, String::new())]);
        assert!(refused(address, &client()).to_string().contains("status 302"));
        server.join().unwrap();

        // A server that accepts and says nothing.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = refused(listener.local_addr().unwrap(), &Client::new(Duration::from_millis(200)));
        assert!(matches!(&error, ClusterError::Http(error) if error.status.is_none()), "{error}");
    });
}

#[test]
fn an_empty_list_of_certificates_is_refused() {
    assert!(Client::trusting(Duration::from_secs(1), b"no PEM").unwrap_err().contains("no certificate"));
    let request = Request { url: "no URL", headers: &[], body: None };
    assert!(client().fetch(&request).is_err());
}
