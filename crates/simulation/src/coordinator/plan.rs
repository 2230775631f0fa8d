//! The program of a simulated coordinator, and the faults in its cluster, as functions of a seed.

use distribute_coordinator::dispatch::Limits;
use distribute_testing::SplitMix;
use std::time::Duration;

/// The time after which a running closure times out.
pub const CLOSURE: Duration = Duration::from_secs(30);

/// The time after which a cancelled closure times out.
pub const CANCEL: Duration = Duration::from_secs(5);

/// A step of a closure. Steps run one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Computes for the given time. Regularly checks for cancellation, unless the closure is [deaf](Closure::deaf).
    Compute(Duration),
    /// Takes `count` elements of a stream. `argument` is the index of the stream among the resources that the closure
    /// uses.
    Take { argument: usize, count: u64 },
    /// Changes a value on a server, without waiting for the response.
    Push { server: usize },
    /// Waits for the responses of all servers.
    Wait,
}

/// The way in which a closure, or the creation of a resource, ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The code succeeds.
    Well,
    /// The code returns an error.
    Fails,
    /// The code panics.
    Panics,
    /// The code hangs.
    Hangs,
    /// The code kills its process.
    Kills,
}

/// A closure of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closure {
    /// The indices of the resources among the closure's arguments.
    pub uses: Vec<usize>,
    /// The steps of the closure.
    pub steps: Vec<Step>,
    /// The way in which the closure ends after its steps.
    pub end: End,
    /// Whether the closure never checks for cancellation.
    pub deaf: bool,
}

/// A resource of the program: a stream of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The indices of the resources among the arguments with which the resource is created.
    pub uses: Vec<usize>,
    /// The time that the creation of the resource takes.
    pub takes: Duration,
    /// The way in which the creation of the resource ends.
    pub end: End,
}

/// An action of the coordinator's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Creates a resource.
    Create(usize),
    /// Drops a resource.
    Forget(usize),
    /// Schedules a closure.
    Schedule(usize),
    /// Waits for all closures.
    Join,
    /// Does nothing for the given time.
    Rest(Duration),
}

/// A fault in a coordinator's cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A worker is killed.
    Kill(usize),
    /// The machine of a worker fails silently.
    Vanish(usize),
    /// A worker is stopped for the given time.
    Pause(usize, Duration),
    /// The connections of a worker break.
    Break(usize),
    /// The network between two sets of hosts is interrupted for a time, in one or both directions.
    Cut { sides: Vec<bool>, one_way: bool, lasts: Duration },
    /// A server does not respond for the given time.
    Down(usize, Duration),
    /// The coordinator is killed, and another one is started after the given time.
    Restart(Duration),
    /// Another coordinator is started while the current one is still running.
    Twin,
}

/// The parameters of a simulation, which are fixed before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workers: usize,
    pub servers: usize,
    pub limits: Limits,
    /// The minimum and maximum delay of a message.
    pub delay: [Duration; 2],
    /// The number of changes, and of successful creations of resources, per thousand that fail as if a server had not
    /// responded.
    pub unanswered: usize,
    pub closures: Vec<Closure>,
    pub resources: Vec<Resource>,
    pub acts: Vec<Act>,
    pub faults: Vec<(Duration, Fault)>,
    /// The time by which the program must have ended.
    pub until: Duration,
}

/// The kinds of faults that a plan contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Only closures and the creation of resources fail.
    Fair,
    /// Workers and servers fail, and the network between them is interrupted.
    Rough,
    /// Workers, servers and coordinators fail, and the network between them is interrupted.
    Storm,
}

impl Plan {
    /// The maximum number of coordinators in a simulation.
    pub const CHIEFS: usize = 5;

    /// Returns the number of hosts for workers, servers and coordinators.
    pub fn hosts(&self) -> usize {
        self.workers + self.servers + Self::CHIEFS
    }

    /// Creates a plan from random bits.
    pub fn new(weather: Weather, draw: &mut SplitMix) -> Self {
        let (workers, servers) = (1 + draw.below(4), 1 + draw.below(3));
        let limits = Limits {
            queue: draw.of(&[3, 30, 1000]),
            window: draw.of(&[1, 4, 16]),
            losses: draw.of(&[1, 5]),
            server_failures: 2,
        };
        let most = draw.of(&[200, 1_000, 20_000]);
        let mut plan = Self {
            workers,
            servers,
            limits,
            delay: [Duration::from_micros(20), Duration::from_micros(most)],
            unanswered: draw.of(&[0, 0, 20, 100]),
            closures: Vec::new(),
            resources: Vec::new(),
            acts: Vec::new(),
            faults: Vec::new(),
            until: Duration::ZERO,
        };
        // The number per thousand that end badly. If few do, more closures are in flight at once.
        let bad = draw.of(&[0, 10, 60]);
        for _ in 0..draw.below(5) {
            plan.create(draw, bad);
        }
        for _ in 0..1 + draw.below(5) {
            plan.phase(draw, bad);
        }
        plan.disturb(weather, draw);
        plan.until = plan.bound();
        plan
    }

    fn create(&mut self, draw: &mut SplitMix, bad: usize) {
        let uses = (0..self.resources.len()).filter(|_| draw.below(4) == 0).collect();
        let takes = ms(draw.of(&[0, 5, 300, 2_000]));
        let end = match draw.below(2_000) {
            n if n < bad => draw.of(&[End::Fails, End::Panics, End::Hangs]),
            _ => End::Well,
        };
        self.acts.push(Act::Create(self.resources.len()));
        self.resources.push(Resource { uses, takes, end });
    }

    fn phase(&mut self, draw: &mut SplitMix, bad: usize) {
        // Short closures are sent ahead.
        let long = draw.of(&[0, 10, 100, 500]);
        for _ in 0..draw.of(&[5, 40, 120]) {
            let closure = self.closure(draw, bad, long);
            self.acts.push(Act::Schedule(self.closures.len()));
            self.closures.push(closure);
            match draw.below(60) {
                0 => self.create(draw, bad),
                1 if !self.resources.is_empty() => {
                    self.acts.push(Act::Forget(draw.below(self.resources.len())));
                }
                2 => self.acts.push(Act::Rest(ms(draw.below(500) as u64))),
                _ => {}
            }
        }
        if draw.below(3) > 0 {
            self.acts.push(Act::Join);
        }
    }

    fn closure(&self, draw: &mut SplitMix, bad: usize, long: usize) -> Closure {
        let uses: Vec<_> = (0..self.resources.len()).filter(|_| draw.below(3) == 0).collect();
        let is_long = draw.below(1_000) < long;
        let mut steps = Vec::new();
        for _ in 0..draw.below(5) {
            steps.push(match draw.below(6) {
                0..2 if !uses.is_empty() => {
                    Step::Take { argument: draw.below(uses.len()), count: 1 + draw.below(3) as u64 }
                }
                2 => Step::Push { server: draw.below(self.servers) },
                3 if is_long => Step::Wait,
                4 if is_long => Step::Compute(ms(draw.of(&[30, 1_000, 6_000]))),
                _ => Step::Compute(Duration::from_micros(draw.below(800) as u64)),
            });
        }
        let end = match draw.below(1_000) {
            n if n < bad => draw.of(&[End::Fails, End::Fails, End::Panics, End::Hangs]),
            _ => End::Well,
        };
        Closure { uses, steps, end, deaf: draw.below(50) == 0 }
    }

    fn disturb(&mut self, weather: Weather, draw: &mut SplitMix) {
        let faults = if weather == Weather::Fair { 0 } else { 1 + draw.below(8) };
        let over = draw.of(&[300, 3_000, 30_000]);
        let mut coordinators = 1;
        for _ in 0..faults {
            let (worker, at) = (draw.below(self.workers), ms(draw.below(over) as u64));
            let lasts = ms(draw.of(&[500, 4_000, 9_000]));
            let fault = match draw.below(if weather == Weather::Storm { 14 } else { 11 }) {
                0..3 => Fault::Kill(worker),
                3 => Fault::Vanish(worker),
                4..6 => Fault::Pause(worker, lasts),
                6..8 => Fault::Break(worker),
                8..10 => {
                    let sides = (0..self.hosts()).map(|host| host == worker || draw.below(3) == 0).collect();
                    Fault::Cut { sides, one_way: draw.below(3) == 0, lasts }
                }
                10 => Fault::Down(draw.below(self.servers), lasts),
                _ if coordinators == Self::CHIEFS => continue,
                12 => {
                    coordinators += 1;
                    Fault::Twin
                }
                _ => {
                    coordinators += 1;
                    Fault::Restart(ms(draw.of(&[1, 500, 5_000])))
                }
            };
            self.faults.push((at, fault));
        }
        if weather != Weather::Fair && !self.closures.is_empty() && draw.below(8) == 0 {
            let which = draw.below(self.closures.len());
            self.closures[which].end = End::Kills;
        }
    }

    /// Returns the time by which the program must have ended, including all retries. It is much longer than necessary,
    /// because other rules detect a task that ends too late.
    fn bound(&self) -> Duration {
        let faults = self.faults.iter().map(|(at, _)| *at).max().unwrap_or_default();
        let attempts = 2 + self.limits.losses + self.limits.server_failures;
        let closure = |closure: &Closure| {
            let steps = closure.steps.iter().map(|step| match step {
                Step::Compute(time) => *time,
                Step::Wait | Step::Push { .. } => ms(20),
                Step::Take { .. } => Duration::ZERO,
            });
            let most = match closure.end {
                End::Hangs => CLOSURE + ms(2_000),
                End::Kills => ms(30_000),
                _ => Duration::ZERO,
            };
            (steps.sum::<Duration>() + most + ms(50)) * attempts
        };
        let rests =
            self.acts.iter().map(|act| if let Act::Rest(time) = act { *time } else { Duration::ZERO });
        let all = self.closures.iter().map(closure).sum::<Duration>() + rests.sum::<Duration>();
        // A resource that hangs disconnects its worker each time that the worker comes back.
        let resources =
            CLOSURE * (self.resources.len() * (2 + self.faults.len() + self.closures.len() / 8)) as u32;
        faults + all + resources + Duration::from_secs(120)
    }
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
