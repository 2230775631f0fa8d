//! A model of the cost of an all-reduce, as a time per message and a time per byte (the α-β model). It is fitted to
//! measurements on this machine, and predicts the time for more workers on several machines.

/// The algorithm of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Each worker sends its vector to every other worker.
    Exchange,
    /// Each worker sends each other worker that worker's range, and then sends the sum of its own range to all. The
    /// group uses this for more than two workers.
    Owners,
    /// Ranges are passed around a ring and summed on the way. The sums are then passed around the ring.
    Ring,
    /// Each worker sends half of its vector to a partner, half of that to the next partner, and so on. The sums are
    /// sent back in reverse order.
    HalvingDoubling,
    /// Each worker sends its vector to its parent in a binomial tree. The sum is sent back.
    Tree,
}

/// The traffic of the worker that sends the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// The number of times that the worker waits for messages of others.
    pub rounds: f64,
    /// The number of messages. It includes those of the agreement: in the first round, a worker sends its call to every
    /// other worker.
    pub messages: f64,
    /// The number of bytes sent as parts of vectors.
    pub bytes: f64,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 5] = [Self::Exchange, Self::Owners, Self::Ring, Self::HalvingDoubling, Self::Tree];

    /// Returns the name of the algorithm.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Owners => "owners fold",
            Self::Ring => "ring",
            Self::HalvingDoubling => "halving-doubling",
            Self::Tree => "tree",
        }
    }

    /// Returns the traffic of a worker in an all-reduce of `bytes` bytes between `workers` workers.
    pub fn sent(self, workers: usize, bytes: f64) -> Sent {
        if workers < 2 {
            return Sent { rounds: 0., messages: 0., bytes: 0. };
        }
        let others = workers as f64 - 1.;
        let ranges = 2. * others / workers as f64 * bytes;
        // The number of halvings, rounded up for a number that is not a power of two.
        let depth = f64::from(workers.next_power_of_two().ilog2());
        let agreed = |rounds: f64, bytes| Sent { rounds, messages: others + rounds - 1., bytes };
        match self {
            Self::Exchange => Sent { rounds: 1., messages: others, bytes: others * bytes },
            Self::Owners => Sent { rounds: 2., messages: 2. * others, bytes: ranges },
            Self::Ring => agreed(2. * others, ranges),
            Self::HalvingDoubling => agreed(2. * depth, ranges),
            // In each round the root sends to a child, or receives from it.
            Self::Tree => agreed(2. * depth, 2. * depth * bytes),
        }
    }
}

/// An all-reduce that was measured on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub algorithm: Algorithm,
    pub workers: usize,
    pub bytes: usize,
    pub seconds: f64,
}

/// The costs of a link, in time of a worker's processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The time in seconds for sending one message and receiving one.
    pub alpha: f64,
    /// The time in seconds for sending one byte, receiving one and adding it.
    pub beta: f64,
}

/// The network between machines.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The time in seconds until a message arrives, in addition to the processors' time.
    pub latency: f64,
    /// The bandwidth of a machine in each direction, in bytes per second.
    pub bandwidth: f64,
}

impl Link {
    /// Fits the model to the points by relative error, so that an error of one microsecond in ten has the same weight
    /// as one second in ten. If there are more workers than `cores`, the workers take turns. Returns `None` if there
    /// are no points.
    pub fn fitted(points: &[Point], cores: usize) -> Option<Self> {
        // Each point is an equation alpha * x + beta * y = 1.
        let equations = points.iter().filter(|point| point.seconds > 0.).map(|point| {
            let sent = point.algorithm.sent(point.workers, point.bytes as f64);
            let turns = turns(point.workers, cores) / point.seconds;
            (sent.messages * turns, sent.bytes * turns)
        });
        let sums = equations
            .fold([0.; 5], |[xx, xy, yy, x, y], (a, b)| [xx + a * a, xy + a * b, yy + b * b, x + a, y + b]);
        let [xx, xy, yy, x, y] = sums;
        let determinant = xx * yy - xy * xy;
        let link = Self { alpha: (x * yy - y * xy) / determinant, beta: (y * xx - x * xy) / determinant };
        let alone = |sum: f64, square: f64| if square > 0. { sum / square } else { 0. };
        if xx == 0. && yy == 0. {
            None
        } else if !link.alpha.is_finite() || link.alpha < 0. {
            Some(Self { alpha: 0., beta: alone(y, yy) })
        } else if !link.beta.is_finite() || link.beta < 0. {
            Some(Self { alpha: alone(x, xx), beta: 0. })
        } else {
            Some(link)
        }
    }

    /// Returns the time in seconds of an all-reduce between processes of one machine.
    pub fn on_one_machine(&self, algorithm: Algorithm, workers: usize, bytes: usize, cores: usize) -> f64 {
        let sent = algorithm.sent(workers, bytes as f64);
        turns(workers, cores) * (sent.messages * self.alpha + sent.bytes * self.beta)
    }

    /// Returns the time in seconds of an all-reduce between workers on separate machines. A byte takes the time of the
    /// processor or of the network, whichever is longer.
    pub fn over(&self, network: Network, algorithm: Algorithm, workers: usize, bytes: usize) -> f64 {
        let sent = algorithm.sent(workers, bytes as f64);
        let byte = self.beta.max(1. / network.bandwidth);
        sent.rounds * network.latency + sent.messages * self.alpha + sent.bytes * byte
    }

    /// Returns the relative error of the model at each point.
    pub fn errors(&self, points: &[Point], cores: usize) -> Vec<f64> {
        let error = |point: &Point| {
            let model = self.on_one_machine(point.algorithm, point.workers, point.bytes, cores);
            (model / point.seconds - 1.).abs()
        };
        points.iter().map(error).collect()
    }
}

/// Returns the factor by which workers slow down because they share cores.
fn turns(workers: usize, cores: usize) -> f64 {
    (workers as f64 / cores.max(1) as f64).max(1.)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { alpha: 2e-6, beta: 3e-10 };

    fn points(link: Link, cores: usize) -> Vec<Point> {
        let worlds = [2, 3, 4, 8, 16].into_iter();
        let all = worlds.flat_map(|workers| [64, 1 << 16, 1 << 24].map(|bytes| (workers, bytes)));
        all.map(|(workers, bytes)| {
            let algorithm = Algorithm::Owners;
            let seconds = link.on_one_machine(algorithm, workers, bytes, cores);
            Point { algorithm, workers, bytes, seconds }
        })
        .collect()
    }

    #[test]
    fn the_link_that_made_the_points_is_found() {
        for cores in [1, 2, 64] {
            let points = points(LINK, cores);
            let found = Link::fitted(&points, cores).unwrap();
            assert!((found.alpha / LINK.alpha - 1.).abs() < 1e-6, "{found:?}");
            assert!((found.beta / LINK.beta - 1.).abs() < 1e-6, "{found:?}");
            assert!(found.errors(&points, cores).iter().all(|error| *error < 1e-6));
        }
    }

    #[test]
    fn neither_cost_is_negative_nor_a_point_needed_twice() {
        assert_eq!(Link::fitted(&[], 2), None);
        // Bytes cost nothing, or less: a possible effect of noise.
        let mut falling = points(Link { alpha: 1e-6, beta: 0. }, 2);
        for point in &mut falling {
            point.seconds /= 1. + point.bytes as f64 / 1e8;
        }
        let found = Link::fitted(&falling, 2).unwrap();
        assert!(found.alpha >= 0. && found.beta >= 0., "{found:?}");
        // Messages cost less than nothing: more messages, with the same number of bytes, in less time.
        let point =
            |workers, seconds| Point { algorithm: Algorithm::Owners, workers, bytes: 1 << 20, seconds };
        let found = Link::fitted(&[point(2, 2e-3), point(16, 1e-3)], 64).unwrap();
        assert!(found.alpha == 0. && found.beta > 0., "{found:?}");
        let one = Link::fitted(&points(LINK, 2)[..1], 2).unwrap();
        assert!(one.errors(&points(LINK, 2)[..1], 2)[0] < 1e-6, "{one:?}");
    }

    #[test]
    fn more_processes_than_cores_take_turns_and_more_cores_do_not_help() {
        let seconds = |cores| LINK.on_one_machine(Algorithm::Owners, 8, 1 << 20, cores);
        assert_eq!((seconds(2), seconds(1)), (4. * seconds(8), 8. * seconds(8)));
        assert_eq!(seconds(64), seconds(8));
    }

    #[test]
    fn what_a_worker_sends_is_what_textbooks_say() {
        let sent = |algorithm: Algorithm, workers| algorithm.sent(workers, 1000.);
        for algorithm in Algorithm::ALL {
            assert_eq!(sent(algorithm, 1), Sent { rounds: 0., messages: 0., bytes: 0. });
        }
        assert_eq!(sent(Algorithm::Exchange, 2), Sent { rounds: 1., messages: 1., bytes: 1000. });
        assert_eq!(sent(Algorithm::Owners, 4), Sent { rounds: 2., messages: 6., bytes: 1500. });
        assert_eq!(sent(Algorithm::Ring, 4), Sent { rounds: 6., messages: 3. + 5., bytes: 1500. });
        assert_eq!(sent(Algorithm::HalvingDoubling, 5).rounds, 6.);
        assert_eq!(sent(Algorithm::Tree, 1000), Sent { rounds: 20., messages: 999. + 19., bytes: 20_000. });
    }

    #[test]
    fn a_slow_network_bounds_bytes_and_each_round_waits_for_it() {
        let network = Network { latency: 1e-3, bandwidth: 1e9 };
        let seconds = LINK.over(network, Algorithm::Owners, 2, 1_000_000);
        assert!((seconds - (2e-3 + 2. * 2e-6 + 1e-3)).abs() < 1e-12, "{seconds}");
        let fast = Network { latency: 0., bandwidth: f64::INFINITY };
        let (a, b) =
            (LINK.over(fast, Algorithm::Ring, 2, 77), LINK.on_one_machine(Algorithm::Ring, 2, 77, 2));
        assert_eq!(a, b);
    }
}
