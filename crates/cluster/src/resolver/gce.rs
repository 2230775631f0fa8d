//! A cluster of virtual machines on Google Compute Engine.

use super::{ClusterResolver, Overrides};
use crate::address::{Address, Host};
use crate::environment::Environment;
use crate::http::{Http, Request, encoded};
use crate::json::{self, Json};
use crate::spec::ClusterSpec;
use crate::task::Job;
use crate::{ClusterError, Malformed};
use serde_json::Value;

/// The options of a [`GceClusterResolver`], which select the instances that are the tasks.
#[derive(Clone)]
pub struct GceOptions {
    /// The instance group whose running instances are the tasks.
    pub instance_group: String,
    /// The port on which all tasks listen.
    pub port: u16,
    /// The project of the group; `None` means this instance's project, according to its metadata.
    pub project: Option<String>,
    /// The zone of the group; `None` means this instance's zone, according to its metadata.
    pub zone: Option<String>,
    /// The job to which all tasks belong.
    pub task_type: Job,
    /// The index of this process in its job; `None` means the index of the task with this instance's address,
    /// according to its metadata.
    pub task_id: Option<usize>,
    /// The access token for the API; `None` means the token of this instance's service account, from its metadata.
    pub token: Option<String>,
    /// The protocol prefix of addresses, such as `grpc`.
    pub rpc_layer: Option<String>,
    /// The base URL of the Compute Engine API.
    pub api: String,
}

impl std::fmt::Debug for GceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GceOptions")
            .field("instance_group", &self.instance_group)
            .field("port", &self.port)
            .field("project", &self.project)
            .field("zone", &self.zone)
            .field("task_type", &self.task_type)
            .field("task_id", &self.task_id)
            .finish_non_exhaustive()
    }
}

impl GceOptions {
    /// Creates options for an instance group whose running instances are workers that listen on `port`.
    pub fn new(instance_group: impl Into<String>, port: u16) -> Self {
        Self {
            instance_group: instance_group.into(),
            port,
            project: None,
            zone: None,
            task_type: Job::Worker,
            task_id: None,
            token: None,
            rpc_layer: Some("grpc".into()),
            api: "https://compute.googleapis.com".into(),
        }
    }
}

/// A resolver for a cluster of Google Compute Engine VMs. Each running instance of an instance group is a task.
///
/// The instances are listed once, when the resolver is created. All tasks belong to the same job, and are numbered in
/// the lexicographic order of their internal IP addresses.
#[doc(alias = "tf.distribute.cluster_resolver.GCEClusterResolver")]
#[derive(Clone, Debug)]
pub struct GceClusterResolver {
    spec: ClusterSpec,
    own: Overrides,
}

impl GceClusterResolver {
    /// Finds the instances of a group, through the metadata server and the API. Outside Google Compute Engine, the
    /// options must contain the project, the zone, the index of the task and the token. In an instance outside the
    /// group, they must contain the index of the task.
    ///
    /// # Errors
    /// - [`ClusterError::Http`]: a request to the metadata server or the API failed.
    /// - [`ClusterError::Forbidden`]: the API denies access.
    /// - [`ClusterError::NotInGroup`]: this instance is not part of the group, and the options do not contain the index
    ///   of the task.
    /// - [`ClusterError::Malformed`], [`ClusterError::Endless`]: a response is not as expected.
    /// - [`ClusterError::TooLarge`]: the group has too many instances.
    #[cfg(feature = "gce")]
    pub fn new(options: GceOptions) -> Result<Self, ClusterError> {
        let client = crate::http::Client::default();
        Self::with_http(options, &client, &crate::environment::ProcessEnvironment)
    }

    /// Equivalent to `new`, except that `http` sends the requests: a `http::Client` (feature `gce`), or a custom one.
    /// The metadata server's host is `GCE_METADATA_HOST` in `environment`, if it is set.
    ///
    /// # Errors
    /// Returns the errors of `new`.
    pub fn with_http(
        options: GceOptions,
        http: &dyn Http,
        environment: &dyn Environment,
    ) -> Result<Self, ClusterError> {
        // Google's own libraries read the same variable.
        let host = environment.get("GCE_METADATA_HOST").unwrap_or_else(|| "metadata.google.internal".into());
        let metadata = Metadata { base: format!("http://{host}/computeMetadata/v1"), http };
        let last = |path: String| path.rsplit('/').next().unwrap_or_default().to_string();
        let project = options.project.map_or_else(|| metadata.text("project/project-id"), Ok)?;
        let zone = options.zone.map_or_else(|| metadata.text("instance/zone").map(last), Ok)?;
        let token = options.token.map_or_else(|| metadata.token(), Ok)?;
        let base = options.api.trim_end_matches('/');
        let base = format!("{base}/compute/v1/projects/{}/zones/{}", encoded(&project), encoded(&zone));
        let api = Api { base, authorization: format!("Bearer {token}"), http };

        let mut addresses = Vec::new();
        for name in api.running(&options.instance_group)? {
            addresses.push(Address::new(Host::Ip(api.ip(&name)?), options.port));
        }
        addresses.sort_by_key(ToString::to_string);
        let mut spec = ClusterSpec::new();
        spec.add_job(options.task_type.clone());
        for (index, address) in addresses.iter().enumerate() {
            spec.insert(options.task_type.clone().task(index), address.clone())?;
        }
        let task_id = match options.task_id {
            Some(task_id) => task_id,
            None => {
                let own = metadata.text("instance/network-interfaces/0/ip")?;
                let at = addresses
                    .iter()
                    .position(|address| matches!(address.host(), Host::Ip(ip) if ip.to_string() == own));
                at.ok_or(ClusterError::NotInGroup { own, group: options.instance_group })?
            }
        };
        let own = Overrides {
            task_type: Some(options.task_type),
            task_id: Some(task_id),
            rpc_layer: options.rpc_layer,
            environment: None,
        };
        Ok(Self { spec, own })
    }
}

/// Access to the metadata server of this instance.
struct Metadata<'a> {
    base: String,
    http: &'a dyn Http,
}

impl Metadata<'_> {
    fn text(&self, path: &str) -> Result<String, ClusterError> {
        let url = format!("{}/{path}", self.base);
        let answer =
            self.http.fetch(&Request { url: &url, headers: &[("Metadata-Flavor", "Google")], body: None })?;
        Ok(String::from_utf8_lossy(&answer).trim().to_string())
    }

    fn token(&self) -> Result<String, ClusterError> {
        const PATH: &str = "instance/service-accounts/default/token";
        let text = self.text(PATH)?;
        // The text may contain a token, which an error must not show.
        let wrong = || Malformed {
            origin: format!("{}/{PATH}", self.base),
            path: String::new(),
            expected: "an object with \"access_token\"".into(),
            found: "something else".into(),
            help: "give GceOptions::token",
        };
        let value: Value = serde_json::from_str(&text).map_err(|_| wrong())?;
        let token = value.get("access_token").and_then(Value::as_str).ok_or_else(wrong)?;
        Ok(token.to_string())
    }
}

/// Access to the Compute Engine API for the instances of one zone.
struct Api<'a> {
    base: String,
    authorization: String,
    http: &'a dyn Http,
}

impl Api<'_> {
    /// Sends a request and parses the response as JSON. The method is POST if `body` is given, and otherwise GET.
    ///
    /// # Errors
    /// - [`ClusterError::Forbidden`]: the API does not allow the request.
    /// - [`ClusterError::Http`]: the request has failed in another way.
    /// - [`ClusterError::Malformed`]: the response is not JSON.
    fn ask(&self, url: &str, body: Option<&str>) -> Result<Value, ClusterError> {
        let headers = [("Authorization", self.authorization.as_str()), ("Content-Type", "application/json")];
        let answer =
            self.http.fetch(&Request { url, headers: &headers, body }).map_err(|error| {
                match error.status {
                    Some(401 | 403) => ClusterError::Forbidden { error, remedy: SCOPE },
                    _ => error.into(),
                }
            })?;
        Ok(json::parse(url, &String::from_utf8_lossy(&answer))?)
    }

    /// Returns the names of the running instances of a group.
    ///
    /// # Errors
    /// - The errors of [`ask`](Self::ask).
    /// - [`ClusterError::Malformed`]: the response is not a list of instances.
    /// - [`ClusterError::Endless`]: the list has too many pages.
    fn running(&self, group: &str) -> Result<Vec<String>, ClusterError> {
        let first = format!("{}/instanceGroups/{}/listInstances", self.base, encoded(group));
        let (mut url, mut names) = (first.clone(), Vec::new());
        for _ in 0..crate::MAX_TASK_INDEX {
            let value = self.ask(&url, Some(r#"{"instanceState":"RUNNING"}"#))?;
            let whole = Json::new(&url, &value);
            let what = "an object with \"items\"";
            let items = whole.get("items", what)?.map(|at| at.items("a list")).transpose()?;
            for item in items.unwrap_or_default() {
                let of = |name| -> Result<String, ClusterError> {
                    let at = item.get(name, "a machine")?;
                    let at = at.ok_or_else(|| item.expected(format!("a machine with {name:?}")))?;
                    Ok(at.text("text")?.to_string())
                };
                if of("status")? == "RUNNING" {
                    // The URL of the machine ends in its name. It is not followed, so the token is sent only
                    // to the API.
                    names.push(of("instance")?.rsplit('/').next().unwrap_or_default().to_string());
                }
            }
            let next = whole.get("nextPageToken", what)?.map(|at| at.text("text")).transpose()?;
            match next.filter(|next| !next.is_empty()) {
                None => return Ok(names),
                Some(next) => url = format!("{first}?pageToken={}", encoded(next)),
            }
        }
        Err(ClusterError::Endless { url: first })
    }

    /// Returns the internal IP address of an instance's first network interface.
    ///
    /// # Errors
    /// - The errors of [`ask`](Self::ask).
    /// - [`ClusterError::Malformed`]: the response does not contain the address.
    fn ip(&self, name: &str) -> Result<core::net::IpAddr, ClusterError> {
        let url = format!("{}/instances/{}", self.base, encoded(name));
        let value = self.ask(&url, None)?;
        let whole = Json::new(&url, &value);
        let what = "a machine with \"networkInterfaces\"";
        let interfaces = whole.get("networkInterfaces", what)?.ok_or_else(|| whole.expected(what))?;
        let first = interfaces.items("a list")?.into_iter().next();
        let first = first.ok_or_else(|| interfaces.expected("a network interface"))?;
        let what = "an interface with \"networkIP\"";
        let ip = first.get("networkIP", what)?.ok_or_else(|| first.expected(what))?;
        Ok(ip.text("an IP address")?.parse().map_err(|_| ip.expected("an IP address"))?)
    }
}

const SCOPE: &str = "the service account needs the role compute.viewer, and the machine the scope compute-ro";

impl ClusterResolver for GceClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        Ok(self.spec.clone())
    }

    fn task_type(&self) -> Option<Job> {
        self.own.task_type.clone()
    }

    fn task_id(&self) -> Option<usize> {
        self.own.task_id
    }

    fn rpc_layer(&self) -> Option<String> {
        self.own.rpc_layer.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpError;
    use serde_json::json;
    use std::sync::Mutex;

    const META: &str = "http://metadata.google.internal/computeMetadata/v1";
    const ZONE: &str = "https://compute.googleapis.com/compute/v1/projects/p/zones/z";

    /// Responds like the metadata server and the API: two running instances, on two pages.
    fn machine(request: &Request<'_>) -> Result<Vec<u8>, HttpError> {
        let instance = |name: &str, status: &str| json!({"instance": format!("{ZONE}/instances/{name}"), "status": status});
        let answer = if let Some(path) = request.url.strip_prefix(META) {
            assert_eq!(request.headers, [("Metadata-Flavor", "Google")]);
            match path {
                "/project/project-id" => json!("p"),
                "/instance/zone" => json!("projects/123/zones/z"),
                "/instance/service-accounts/default/token" => {
                    json!({"access_token": "s3cret", "expires_in": 9})
                }
                "/instance/network-interfaces/0/ip" => json!("10.0.0.9"),
                other => return Err(HttpError::of_status(other, 404, b"")),
            }
        } else {
            assert!(request.headers.contains(&("Authorization", "Bearer s3cret")));
            match request.url.strip_prefix(ZONE).unwrap() {
                "/instanceGroups/g/listInstances" => {
                    assert_eq!(request.body, Some(r#"{"instanceState":"RUNNING"}"#));
                    json!({"items": [instance("b", "RUNNING"), instance("x", "STOPPING")], "nextPageToken": "2"})
                }
                "/instanceGroups/g/listInstances?pageToken=2" => json!({"items": [instance("a", "RUNNING")]}),
                "/instances/a" => json!({"networkInterfaces": [{"networkIP": "10.0.0.10"}]}),
                "/instances/b" => json!({"networkInterfaces": [{"networkIP": "10.0.0.9"}]}),
                "/instanceGroups/none/listInstances" => json!({}),
                other => return Err(HttpError::of_status(other, 403, b"no")),
            }
        };
        let text = answer.as_str().map_or_else(|| answer.to_string(), String::from);
        Ok(text.into_bytes())
    }

    // RES-6
    #[test]
    fn res_6_running_machines_are_tasks_in_the_order_of_their_addresses() {
        let resolver = GceClusterResolver::with_http(GceOptions::new("g", 7), &machine, &[]).unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"worker":["10.0.0.10:7","10.0.0.9:7"]}"#);
        assert_eq!(resolver.task(), Some(Job::Worker.task(1)));
        assert_eq!(resolver.master().unwrap(), "grpc://10.0.0.9:7");
    }

    // RES-6
    #[test]
    fn res_6_given_values_are_not_requested() {
        let asked = Mutex::new(Vec::new());
        let http = |request: &Request<'_>| {
            asked.lock().unwrap().push(request.url.to_string());
            machine(request)
        };
        let options = GceOptions {
            project: Some("p".into()),
            zone: Some("z".into()),
            token: Some("s3cret".into()),
            task_type: Job::Ps,
            task_id: Some(0),
            ..GceOptions::new("g", 7)
        };
        let resolver = GceClusterResolver::with_http(options, &http, &[]).unwrap();
        assert_eq!(resolver.task(), Some(Job::Ps.task(0)));
        assert!(asked.lock().unwrap().iter().all(|url| url.starts_with(ZONE)));
    }

    #[test]
    fn a_refusal_names_its_source() {
        let error = |options: GceOptions| {
            GceClusterResolver::with_http(options, &machine, &[]).unwrap_err().to_string()
        };
        assert_eq!(
            error(GceOptions::new("none", 7)),
            "this machine has the address 10.0.0.9, which no running machine of the instance group \
             \"none\" has; give GceOptions::task_id if it participates"
        );
        assert!(error(GceOptions::new("other", 7)).contains("needs the role compute.viewer"));
        let leak = |request: &Request<'_>| {
            let token = request.url.ends_with("token").then(|| br#"{"token": "s3cret"}"#.to_vec());
            token.map_or_else(|| machine(request), Ok)
        };
        let error =
            GceClusterResolver::with_http(GceOptions::new("g", 7), &leak, &[]).unwrap_err().to_string();
        assert!(error.contains("access_token") && !error.contains("s3cret"), "{error}");
    }
}
