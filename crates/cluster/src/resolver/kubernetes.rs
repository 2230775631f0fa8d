//! A cluster of Kubernetes pods.

use super::{ClusterResolver, Overrides};
use crate::address::{Address, Host};
use crate::environment::Environment;
use crate::error::ClusterError;
use crate::http::{Http, Request, encoded};
use crate::json::{self, Json};
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use std::collections::BTreeMap;

/// The options of a [`KubernetesClusterResolver`], which select the pods that are the tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesOptions {
    /// The label selectors that find each job's pods. By default, pods with `job-name=tensorflow` are workers.
    pub jobs: BTreeMap<Job, Vec<String>>,
    /// The port on which all tasks listen; 8470 by default.
    pub port: u16,
    /// The namespace of the pods. If it is `None`, all namespaces are searched, which requires a cluster role.
    pub namespace: Option<String>,
    /// The name of this process's pod. If it is `None`, the name comes from the variable `POD_NAME` or, if that is not
    /// set, `HOSTNAME`. If no pod of the cluster has this name, the resolver has no task for this process.
    pub pod: Option<String>,
    /// Values that replace those of the resolver. The protocol is `grpc` by default.
    pub overrides: Overrides,
}

impl Default for KubernetesOptions {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::from([(Job::Worker, vec!["job-name=tensorflow".into()])]),
            port: 8470,
            namespace: None,
            pod: None,
            overrides: Overrides { rpc_layer: Some("grpc".into()), ..Overrides::default() },
        }
    }
}

/// The URL of the Kubernetes API, and the token for it.
#[derive(Clone)]
pub struct KubernetesAccess {
    /// The URL of the API, such as `https://10.96.0.1:443`.
    pub url: String,
    /// The bearer token for the API. If it is empty, no token is sent.
    pub token: String,
}

impl std::fmt::Debug for KubernetesAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesAccess").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A resolver for a cluster whose tasks are Kubernetes pods. The pods are found by their labels when the resolver is
/// created, and must all be running by then.
///
/// The tasks of a job are its pods, in the order of their names. The address of a task is the IP address of its pod.
/// The host's IP address is used instead if the pod uses the host's network or maps the port to the host.
///
/// If an operator such as Kubeflow's sets `TF_CONFIG`, prefer
/// [`TfConfigClusterResolver`](super::TfConfigClusterResolver). It needs no access rights, and pods need not be
/// running yet.
#[doc(alias = "tf.distribute.cluster_resolver.KubernetesClusterResolver")]
#[derive(Clone, Debug)]
pub struct KubernetesClusterResolver {
    spec: ClusterSpec,
    task: Option<Task>,
    overrides: Overrides,
}

impl KubernetesClusterResolver {
    /// Finds the cluster from inside a pod, with the rights of the pod's service account.
    ///
    /// # Errors
    /// - [`ClusterError::NotSet`]: this process is not in a pod.
    /// - [`ClusterError::Account`]: a file of the service account cannot be read, or contains no valid certificate.
    /// - [`ClusterError::Http`], [`ClusterError::Forbidden`]: a request failed, or the API denies access.
    /// - [`ClusterError::PodNotRunning`]: a pod is not running.
    /// - [`ClusterError::SharedAddress`]: two pods would have the same address.
    /// - [`ClusterError::TooLarge`]: a job has too many pods.
    /// - [`ClusterError::Malformed`], [`ClusterError::Host`], [`ClusterError::Endless`]: a response is not as expected.
    #[cfg(feature = "kubernetes")]
    pub fn within_cluster(options: KubernetesOptions) -> Result<Self, ClusterError> {
        use crate::deadline::DEFAULT_TIMEOUT;
        use crate::environment::{ProcessEnvironment, required};
        const NO_POD: &str = "this process is not in a pod; outside of one, use `with_access`";
        const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
        let environment = ProcessEnvironment;
        let host = required(&environment, "KUBERNETES_SERVICE_HOST", NO_POD)?;
        let port = required(&environment, "KUBERNETES_SERVICE_PORT", NO_POD)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let file = |name: &str| {
            let path = format!("{ACCOUNT}/{name}");
            crate::http::read(&path).map_err(|what| ClusterError::Account { path, what })
        };
        let (token, roots) = (file("token")?, file("ca.crt")?);
        let client = crate::http::Client::trusting(DEFAULT_TIMEOUT, &roots);
        let client =
            client.map_err(|what| ClusterError::Account { path: format!("{ACCOUNT}/ca.crt"), what })?;
        let token = String::from_utf8_lossy(&token).trim().to_string();
        let access = KubernetesAccess { url: format!("https://{host}:{port}"), token };
        Self::with_access(options, &access, &client, &environment)
    }

    /// Finds the tasks through the Kubernetes API at `access`. `http` sends the requests: a `http::Client` (feature
    /// `kubernetes`), or a custom one. If `options` do not name this process's pod, the name comes from `POD_NAME` or
    /// else `HOSTNAME` in `environment`.
    ///
    /// # Errors
    /// - [`ClusterError::Http`], [`ClusterError::Forbidden`]: a request failed, or the API denies access.
    /// - [`ClusterError::PodNotRunning`]: a pod is not running.
    /// - [`ClusterError::SharedAddress`]: two pods would have the same address.
    /// - [`ClusterError::TooLarge`]: a job has too many pods.
    /// - [`ClusterError::Malformed`], [`ClusterError::Host`], [`ClusterError::Endless`]: a response is not as
    ///   expected.
    pub fn with_access(
        options: KubernetesOptions,
        access: &KubernetesAccess,
        http: &dyn Http,
        environment: &dyn Environment,
    ) -> Result<Self, ClusterError> {
        let (mut spec, mut named) = (ClusterSpec::new(), BTreeMap::new());
        let mut taken: BTreeMap<Address, String> = BTreeMap::new();
        for (job, selectors) in &options.jobs {
            let mut pods = BTreeMap::new();
            for selector in selectors {
                list(access, options.namespace.as_deref(), selector, http, &mut pods)?;
            }
            spec.add_job(job.clone());
            for (index, ((_, name), pod)) in pods.into_iter().enumerate() {
                let task = job.clone().task(index);
                let address = pod.address(&name, options.port)?;
                if let Some(other) = taken.insert(address.clone(), name.clone()) {
                    return Err(ClusterError::SharedAddress {
                        one: other,
                        other: name,
                        address: address.to_string(),
                    });
                }
                spec.insert(task.clone(), address)?;
                named.insert(name, task);
            }
        }
        let own = options.pod.or_else(|| environment.get("POD_NAME")).or_else(|| environment.get("HOSTNAME"));
        let task = own.and_then(|own| named.remove(&own));
        Ok(Self { spec, task, overrides: options.overrides })
    }
}

/// The properties of a pod that determine the address of its task.
#[derive(Debug)]
struct Pod {
    phase: String,
    pod_ip: Option<String>,
    host_ip: Option<String>,
    host_network: bool,
    /// The ports of the host that are mapped to ports of the pod.
    host_ports: Vec<u64>,
}

/// The pods, by namespace and name.
type Pods = BTreeMap<(String, String), Pod>;

/// Requests the pods that match a label selector, and adds them to `pods`. Without a namespace, all namespaces
/// are searched.
///
/// # Errors
/// - [`ClusterError::Forbidden`]: the service account may not list pods.
/// - [`ClusterError::Http`]: a request has failed in another way.
/// - [`ClusterError::Malformed`]: a response is not a list of pods.
/// - [`ClusterError::Endless`]: the list has too many pages.
fn list(
    access: &KubernetesAccess,
    namespace: Option<&str>,
    selector: &str,
    http: &dyn Http,
    pods: &mut Pods,
) -> Result<(), ClusterError> {
    let scope = namespace.map_or(String::new(), |namespace| format!("/namespaces/{}", encoded(namespace)));
    let base = access.url.trim_end_matches('/');
    let first = format!("{base}/api/v1{scope}/pods?labelSelector={}", encoded(selector));
    let authorization = format!("Bearer {}", access.token);
    let headers = [("Accept", "application/json"), ("Authorization", authorization.as_str())];
    let headers = if access.token.is_empty() { &headers[..1] } else { &headers };
    let mut url = first.clone();
    // A page for each possible task is the limit.
    for _ in 0..crate::MAX_TASK_INDEX {
        let answer =
            http.fetch(&Request { url: &url, headers, body: None }).map_err(|error| match error.status {
                Some(401 | 403) => ClusterError::Forbidden { error, remedy: ROLE },
                _ => error.into(),
            })?;
        let next = read(&url, &String::from_utf8_lossy(&answer), pods)?;
        match next {
            None => return Ok(()),
            Some(next) => url = format!("{first}&continue={}", encoded(&next)),
        }
    }
    Err(ClusterError::Endless { url: first })
}

const ROLE: &str = "the service account needs a role that may list pods, and a cluster role without \
                    KubernetesOptions::namespace";

/// Parses a page of a list of pods, and adds them to `pods`. Returns the token of the next page; `None` if this
/// is the last one.
///
/// # Errors
/// Returns [`ClusterError::Malformed`] if the page is not a list of pods. Some of its pods may have been added.
fn read(url: &str, answer: &str, pods: &mut Pods) -> Result<Option<String>, ClusterError> {
    let value = json::parse(url, answer)?;
    let whole = Json::new(url, &value);
    let what = "a list of pods";
    let items = whole.get("items", what)?.ok_or_else(|| whole.expected(what))?;
    // An empty list may be null.
    let items = if items.value().is_null() { Vec::new() } else { items.items(what)? };
    for item in items {
        let (key, pod) = pod(&item)?;
        pods.insert(key, pod);
    }
    let metadata = whole.get("metadata", what)?;
    let next = metadata.map(|at| at.get("continue", "an object")).transpose()?.flatten();
    let next = next.map(|at| at.text("text")).transpose()?;
    Ok(next.filter(|next| !next.is_empty()).map(String::from))
}

fn pod(item: &Json<'_>) -> Result<((String, String), Pod), ClusterError> {
    let object = "an object";
    let part = |name| -> Result<Json<'_>, ClusterError> {
        Ok(item.get(name, "a pod")?.ok_or_else(|| item.expected(format!("a pod with {name:?}")))?)
    };
    let text = |of: &Json<'_>, name: &str| -> Result<Option<String>, ClusterError> {
        Ok(of.get(name, object)?.map(|at| at.text("text").map(String::from)).transpose()?)
    };
    let (metadata, status) = (part("metadata")?, part("status")?);
    let name = text(&metadata, "name")?.ok_or_else(|| metadata.expected("a name"))?;
    let namespace = text(&metadata, "namespace")?.unwrap_or_default();
    let spec = item.get("spec", "a pod")?;
    let host_network = match &spec {
        Some(spec) => spec.get("hostNetwork", object)?.is_some_and(|at| at.value().as_bool() == Some(true)),
        None => false,
    };
    let mut host_ports = Vec::new();
    let containers = spec.map(|spec| spec.get("containers", object)).transpose()?.flatten();
    for container in containers.map(|at| at.items("a list")).transpose()?.unwrap_or_default() {
        let ports = container.get("ports", object)?;
        for port in ports.map(|at| at.items("a list")).transpose()?.unwrap_or_default() {
            host_ports.extend(port.get("hostPort", object)?.and_then(|at| at.value().as_u64()));
        }
    }
    let phase = text(&status, "phase")?.unwrap_or_default();
    let (pod_ip, host_ip) = (text(&status, "podIP")?, text(&status, "hostIP")?);
    Ok(((namespace, name), Pod { phase, pod_ip, host_ip, host_network, host_ports }))
}

impl Pod {
    /// Returns the address of the task in the pod `name`, which listens on `port`: the address of the host if the pod
    /// uses the host's network or this port of the host, and otherwise the address of the pod.
    ///
    /// # Errors
    /// - [`ClusterError::PodNotRunning`]: the pod is not running, or has no address yet.
    /// - [`ClusterError::Host`]: the address is not an IP address.
    fn address(&self, name: &str, port: u16) -> Result<Address, ClusterError> {
        let of_host = self.host_network || self.host_ports.contains(&port.into());
        let ip = if of_host { &self.host_ip } else { &self.pod_ip };
        let not_running = || ClusterError::PodNotRunning {
            pod: name.into(),
            phase: if self.phase.is_empty() { "not known".into() } else { self.phase.clone() },
        };
        let ip = ip.as_ref().filter(|_| self.phase == "Running").ok_or_else(not_running)?;
        let wrong = |_| ClusterError::Host { found: ip.clone(), why: "no IP address".into() };
        Ok(Address::new(Host::Ip(ip.parse().map_err(wrong)?), port))
    }
}

impl ClusterResolver for KubernetesClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        Ok(self.spec.clone())
    }

    fn task_type(&self) -> Option<Job> {
        self.overrides.task_type.clone().or_else(|| Some(self.task.as_ref()?.job.clone()))
    }

    fn task_id(&self) -> Option<usize> {
        self.overrides.task_id.or_else(|| Some(self.task.as_ref()?.index))
    }

    fn rpc_layer(&self) -> Option<String> {
        self.overrides.rpc_layer.clone()
    }

    fn environment(&self) -> Option<String> {
        self.overrides.environment.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpError;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    fn pod(name: &str, phase: &str, ip: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ml"}, "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": phase, "podIP": ip, "hostIP": "192.168.0.9"}})
    }

    /// Resolves the cluster with these responses, in turn, and returns the result and the requested URLs.
    fn resolve(
        options: KubernetesOptions,
        answers: &[Value],
    ) -> (Result<KubernetesClusterResolver, String>, Vec<String>) {
        let asked = Mutex::new(Vec::new());
        let http = |request: &Request<'_>| {
            assert!(request.headers.contains(&("Authorization", "Bearer t")) && request.body.is_none());
            let mut asked = asked.lock().unwrap();
            asked.push(request.url.to_string());
            match &answers[asked.len() - 1] {
                Value::Number(status) => Err(HttpError::of_status(
                    request.url,
                    status.as_u64().unwrap() as u16,
                    b"pods is forbidden",
                )),
                answer => Ok(answer.to_string().into_bytes()),
            }
        };
        let access = KubernetesAccess { url: "https://api/".into(), token: "t".into() };
        let environment = [("HOSTNAME", "w-1")];
        let resolver = KubernetesClusterResolver::with_access(options, &access, &http, &environment);
        (resolver.map_err(|error| error.to_string()), asked.into_inner().unwrap())
    }

    // RES-5
    #[test]
    fn res_5_running_pods_are_tasks_in_the_order_of_names() {
        let pods = json!({"items": [pod("w-1", "Running", "10.0.0.2"), pod("w-0", "Running", "10.0.0.7")]});
        let (resolver, asked) = resolve(KubernetesOptions::default(), &[pods]);
        let resolver = resolver.unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"worker":["10.0.0.7:8470","10.0.0.2:8470"]}"#);
        assert_eq!(
            (resolver.task(), resolver.master().unwrap()),
            (Some(Job::Worker.task(1)), "grpc://10.0.0.2:8470".into())
        );
        assert_eq!(asked, ["https://api/api/v1/pods?labelSelector=job-name%3Dtensorflow"]);
    }

    // RES-5
    #[test]
    fn res_5_jobs_have_selectors_and_lists_have_pages() {
        let jobs = BTreeMap::from([(Job::Ps, vec!["a".into()]), (Job::Worker, vec!["b".into(), "c".into()])]);
        let options = KubernetesOptions { jobs, namespace: Some("ml".into()), port: 1, ..Default::default() };
        let page = |pods: Vec<Value>, next: &str| json!({"metadata": {"continue": next}, "items": pods});
        let w0 = pod("w-0", "Running", "10.0.0.2");
        let answers = [
            page(vec![pod("p-0", "Running", "10.0.0.1")], ""),
            page(vec![w0.clone()], "x/y"),
            page(vec![pod("w-1", "Running", "10.0.0.3")], ""),
            json!({"items": [w0]}),
        ];
        let (resolver, asked) = resolve(options, &answers);
        assert_eq!(
            resolver.unwrap().spec.to_string(),
            r#"{"ps":["10.0.0.1:1"],"worker":["10.0.0.2:1","10.0.0.3:1"]}"#
        );
        assert_eq!(asked[2], "https://api/api/v1/namespaces/ml/pods?labelSelector=b&continue=x%2Fy");
        assert_eq!(asked.len(), 4);
    }

    #[test]
    fn a_pod_on_its_hosts_network_is_at_the_hosts_address() {
        let mut pods = [
            pod("a", "Running", "10.0.0.2"),
            pod("b", "Running", "fd00::7"),
            pod("c", "Running", "10.0.0.4"),
        ];
        pods[0]["spec"]["hostNetwork"] = json!(true);
        let spec = resolve(KubernetesOptions::default(), &[json!({"items": pods})]).0.unwrap().spec;
        assert_eq!(spec.to_string(), r#"{"worker":["192.168.0.9:8470","[fd00::7]:8470","10.0.0.4:8470"]}"#);
        pods[2]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8470, "hostPort": 8470}]);
        let error = resolve(KubernetesOptions::default(), &[json!({"items": pods})]).0.unwrap_err();
        assert_eq!(
            error,
            "\"a\" and \"c\" would both be at 192.168.0.9:8470; give them separate ports, or a separate \
             network"
        );
    }

    // RES-5
    #[test]
    fn res_5_pods_that_do_not_run_are_named() {
        let refused = |answer: Value| resolve(KubernetesOptions::default(), &[answer]).0.unwrap_err();
        let error =
            refused(json!({"items": [pod("w-0", "Running", "10.0.0.2"), pod("w-1", "Pending", "10.0.0.3")]}));
        assert_eq!(
            error,
            "the pod \"w-1\" is not running, its phase is Pending; wait until all pods run, and retry"
        );
        let error = refused(json!(403));
        assert!(error.contains("status 403: pods is forbidden; the service account needs a role"), "{error}");
        assert!(
            refused(json!({"items": [{"metadata": {}}]}))
                .contains(r#"items[0]: expected a pod with "status""#)
        );
        assert!(refused(json!({"kind": "Status"})).contains("expected a list of pods"));
        assert!(refused(json!({"items": [pod("w-0", "Running", "nowhere")]})).contains("no IP address"));
        let none = resolve(KubernetesOptions::default(), &[json!({"items": null})]).0.unwrap();
        assert_eq!((none.spec.to_string(), none.task()), (r#"{"worker":{}}"#.into(), None));
    }
}
