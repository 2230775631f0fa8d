//! The dependencies between packages, and samples of a package's neighbourhood.

use std::collections::HashMap;

/// The packages as a graph. Its edges are dependencies, in both directions.
pub struct Graph {
    /// The position of each package's first neighbour in the list of all neighbours.
    starts: Vec<usize>,
    neighbours: Vec<u32>,
}

impl Graph {
    /// The number of neighbours sampled for a package, and the number for each of these.
    pub const FIRST: usize = 10;
    pub const SECOND: usize = 5;

    /// Creates the graph. `depends` has the comma-separated names of each package's dependencies.
    pub fn new(names: &[String], depends: &[String]) -> Self {
        let numbers: HashMap<&str, u32> =
            names.iter().enumerate().map(|(i, name)| (name.as_str(), i as u32)).collect();
        let mut lists = vec![Vec::new(); names.len()];
        for (package, depends) in depends.iter().enumerate() {
            for other in depends.split(',').filter_map(|name| numbers.get(name)) {
                lists[package].push(*other);
                lists[*other as usize].push(package as u32);
            }
        }
        // A package without neighbours is its own.
        for (package, list) in lists.iter_mut().enumerate().filter(|(_, list)| list.is_empty()) {
            list.push(package as u32);
        }
        let mut starts = vec![0];
        starts.extend(lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        }));
        Self { starts, neighbours: lists.concat() }
    }

    /// Returns `FIRST` neighbours of each package, and `SECOND` neighbours of each of them. They are sampled with
    /// replacement by (seed, package, position), so a sample depends on nothing else.
    pub fn sample(&self, packages: &[u32], seed: u64) -> (Vec<u32>, Vec<u32>) {
        let mut first = Vec::with_capacity(packages.len() * Self::FIRST);
        let mut second = Vec::with_capacity(first.capacity() * Self::SECOND);
        for package in packages {
            let key = mix(seed ^ mix(u64::from(*package)));
            let mut draws = (0..).map(|draw| mix(key.wrapping_add(draw)));
            for _ in 0..Self::FIRST {
                let neighbour = self.neighbour(*package, &mut draws);
                first.push(neighbour);
                second.extend((0..Self::SECOND).map(|_| self.neighbour(neighbour, &mut draws)));
            }
        }
        (first, second)
    }

    fn neighbour(&self, package: u32, draws: &mut impl Iterator<Item = u64>) -> u32 {
        let all = &self.neighbours[self.starts[package as usize]..self.starts[package as usize + 1]];
        let draw = draws.next().unwrap_or_default();
        all[(draw % all.len() as u64) as usize]
    }
}

/// Returns pseudorandom bits that depend on all bits of `x` (SplitMix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
