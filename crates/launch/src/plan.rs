//! [`Plan`]: the address and the `TF_CONFIG` of each task, and the secret of the job.

use crate::layout::trains;
use crate::{Error, Job, Layout, RemoteHost, Result, Secret, Task};
use distribute_cluster::{Address, ClusterSpec, Host, TfConfig};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The default first port on remote hosts.
pub const PORT_BASE: u16 = 2222;

/// A job whose tasks have addresses. It contains everything that is decided before the start.
///
/// On this machine, tasks get free ports that the system chooses. Each port is reserved until just before its task
/// starts. If another program takes the port in that moment, the task fails with "address in use". On other hosts,
/// tasks get consecutive ports from [`PORT_BASE`] on, which may not be free.
#[derive(Debug)]
pub struct Plan {
    layout: Layout,
    tasks: Vec<PlannedTask>,
    secret: Secret,
}

/// One task of a plan, with its host and address.
#[derive(Debug)]
pub struct PlannedTask {
    /// The job and the index of the task.
    pub task: Task,
    /// The host on which the task runs; `None` means this machine, without ssh.
    pub host: Option<RemoteHost>,
    /// The address to which the other tasks connect; `None` for an evaluator.
    pub address: Option<Address>,
    cluster: Arc<ClusterSpec>,
    /// The socket that reserves the task's port; `None` if the port is not reserved.
    port: Option<OwnedFd>,
}

impl PlannedTask {
    /// Returns the `TF_CONFIG` of the task: the cluster (without the evaluator) and the task itself.
    pub fn tf_config(&self) -> TfConfig {
        TfConfig::new(self.cluster.as_ref().clone(), self.task.clone())
    }

    /// Releases the reserved port. Call this just before the task starts.
    pub(crate) fn release_port(&mut self) {
        self.port = None;
    }

    /// Returns whether the task trains: chiefs and workers do. The job succeeds when all such tasks have succeeded,
    /// except those that it did not need.
    pub fn trains(&self) -> bool {
        trains(&self.task)
    }
}

impl Plan {
    /// Creates a plan for the layout: assigns an address to each task, and creates a secret.
    ///
    /// # Errors
    /// - The errors of [`Layout::check`].
    /// - [`Error::NoPort`]: a port of this machine could not be reserved.
    /// - [`Error::Random`]: the system provides no random bytes for the secret.
    /// - [`Error::Cluster`]: the tasks and their addresses do not form a valid cluster.
    pub fn new(layout: &Layout) -> Result<Self> {
        Self::with_port_base(layout, None)
    }

    /// Creates a plan in which the tasks on each host have consecutive ports from `base` on. If `base` is `None`, ports
    /// are chosen as [`Plan`] describes.
    ///
    /// # Errors
    /// - The errors of [`Plan::new`].
    /// - [`Error::Ports`]: a host needs ports above 65535.
    pub fn with_port_base(layout: &Layout, base: Option<u16>) -> Result<Self> {
        layout.check()?;
        let here = layout.hosts.iter().all(RemoteHost::is_loopback);
        let mut tasks = layout.tasks();
        let mut kept = Vec::new();
        let ports = match (here, base) {
            (true, None) => {
                let mut ports = Vec::new();
                for (task, _) in tasks.iter().filter(|(task, _)| has_address(task)) {
                    let refused = |source| Error::NoPort { task: task.clone(), source };
                    let (port, socket) = free_port().map_err(refused)?;
                    ports.push(port);
                    kept.push(socket);
                }
                ports
            }
            (_, base) => numbered(layout, &tasks, base.unwrap_or(PORT_BASE))?,
        };
        let addresses = addresses(layout, &tasks, &ports);
        let mut cluster = ClusterSpec::new();
        for ((task, _), address) in tasks.iter().zip(&addresses) {
            if let Some(address) = address {
                cluster.insert(task.clone(), address.clone())?;
            }
        }
        let (cluster, mut kept) = (Arc::new(cluster), kept.into_iter());
        let tasks = tasks.drain(..).zip(addresses).map(|((task, host), address)| PlannedTask {
            host: host.and_then(|host| layout.hosts.get(host).cloned()),
            port: address.as_ref().and_then(|_| kept.next()),
            cluster: cluster.clone(),
            address,
            task,
        });
        Ok(Self {
            layout: layout.clone(),
            tasks: tasks.collect(),
            secret: Secret::random().map_err(Error::Random)?,
        })
    }

    /// Sets the secret of the job, for example so that other processes can join the job. By default, each plan has a
    /// new secret.
    pub fn with_secret(self, secret: Secret) -> Self {
        Self { secret, ..self }
    }

    /// Returns the layout from which the plan was created.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the tasks, in the order chief, workers, parameter servers, evaluator.
    pub fn tasks(&self) -> &[PlannedTask] {
        &self.tasks
    }

    /// Returns the secret that all tasks share.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(crate) fn into_tasks(self) -> Vec<PlannedTask> {
        self.tasks
    }
}

/// Returns whether a task has an address. An evaluator has none, because no task connects to it.
fn has_address(task: &Task) -> bool {
    task.job != Job::Evaluator
}

/// Returns a free port of this machine, and a socket that reserves it as long as the socket is open. The socket does
/// not listen, so a task that connects too early is rejected as if the port were unused, and retries.
fn free_port() -> io::Result<(u16, OwnedFd)> {
    use rustix::net::{AddressFamily, bind, getsockname};
    let socket = distribute_net::socket::stream(AddressFamily::INET)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((address.port(), socket))
}

/// Returns a port for each task that has an address. On each host, ports are consecutive from `base` on.
fn numbered(layout: &Layout, tasks: &[(Task, Option<usize>)], base: u16) -> Result<Vec<u16>> {
    let mut used = vec![0_usize; layout.hosts.len().max(1)];
    let mut ports = Vec::new();
    for (_, host) in tasks.iter().filter(|(task, _)| has_address(task)) {
        let host = host.unwrap_or(0);
        let port = u16::try_from(usize::from(base).saturating_add(used[host]));
        used[host] += 1;
        ports.push(port.map_err(|_| Error::Ports {
            host: layout.hosts.get(host).map_or("this machine".into(), |host| host.host().to_string()),
            base,
            ports: tasks.iter().filter(|(task, on)| has_address(task) && on.unwrap_or(0) == host).count(),
        })?);
    }
    Ok(ports)
}

fn addresses(layout: &Layout, tasks: &[(Task, Option<usize>)], ports: &[u16]) -> Vec<Option<Address>> {
    let mut ports = ports.iter();
    let address = |(task, host): &(Task, Option<usize>)| {
        let port = *has_address(task).then(|| ports.next())??;
        Some(match host.and_then(|host| layout.hosts.get(host)) {
            Some(host) => host.address(port),
            None => Address::new(Host::Ip(Ipv4Addr::LOCALHOST.into()), port),
        })
    };
    tasks.iter().map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_hosts;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn each_task_gets_the_cluster_and_its_index() {
        let hosts = parse_hosts("me@a,b").unwrap();
        let layout = Layout::new(2).with_chief().ps(1).with_evaluator().hosts(hosts);
        let plan = Plan::with_port_base(&layout, Some(5000)).unwrap();
        let jobs = [("chief", vec!["a:5000"]), ("worker", vec!["a:5001", "b:5000"]), ("ps", vec!["a:5002"])];
        let cluster = ClusterSpec::from_lists(jobs).unwrap();
        let own = [
            ("chief", 0, "a"),
            ("worker", 0, "a"),
            ("worker", 1, "b"),
            ("ps", 0, "a"),
            ("evaluator", 0, "b"),
        ];
        assert_eq!(plan.tasks().len(), own.len());
        for (planned, (job, index, host)) in plan.tasks().iter().zip(own) {
            let told: TfConfig = planned.tf_config().to_string().parse().unwrap();
            assert_eq!(told, TfConfig::new(cluster.clone(), Task::new(job, index)));
            told.validate().unwrap();
            assert_eq!(planned.host.as_ref().unwrap().destination().trim_start_matches("me@"), host);
            assert_eq!(planned.address.is_none(), job == "evaluator");
        }
    }

    #[test]
    fn ports_of_this_machine_are_free_ones_and_stay_ours_until_the_start() {
        for layout in [Layout::new(3), Layout::new(3).hosts(parse_hosts("localhost").unwrap())] {
            let mut plan = Plan::new(&layout).unwrap();
            let addresses: Vec<_> = plan.tasks().iter().map(|task| task.address.clone().unwrap()).collect();
            for (address, task) in addresses.iter().zip(&mut plan.tasks) {
                let port = address.port();
                assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "{address} listens");
                assert!(TcpListener::bind(("127.0.0.1", port)).is_err(), "{address} is free for others");
                task.release_port();
                TcpListener::bind(("127.0.0.1", port)).unwrap();
            }
        }
    }

    #[test]
    fn ports_beyond_the_last_are_refused() {
        Plan::with_port_base(&Layout::new(2), Some(65534)).unwrap();
        let error = Plan::with_port_base(&Layout::new(3).with_evaluator(), Some(65534)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--port-base 65534: this machine needs 3 ports from there, beyond 65535; start lower"
        );
    }
}
