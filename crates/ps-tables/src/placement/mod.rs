//! The assignment of variables and shards to servers. `policy` chooses the server of a new variable, and `display`
//! formats the assignments as a table.

mod display;
mod policy;

pub use policy::{PlacementPolicy, TablePolicy};

use crate::{Error, Result, RowPartition, RowReads};
use distribute_tensor::DType;
use policy::Choice;
use std::collections::BTreeMap;
use std::ops::Range;

/// A record of the variables of a job and their servers, which assigns servers to new variables. It can be displayed as
/// a table.
///
/// The result depends only on the calls: the same variables, created in the same order, get the same servers.
///
/// ```
/// use distribute_ps_tables::{Placement, PlacementPolicy, RowPartition};
/// use distribute_tensor::DType;
///
/// let mut placement = Placement::new(2, PlacementPolicy::RoundRobin)?;
/// assert_eq!(placement.place("table", &[5, 8], DType::F32, Some(RowPartition::div(5, 3)))?, [0, 1, 0]);
/// assert_eq!(placement.place("bias", &[8], DType::F32, None)?, [1]);
/// assert_eq!(
///     placement.to_string(),
///     "\
/// variable      rows  shape   dtype    bytes  server
/// table/part_0  0..2  [2, 8]  float32  64     0
/// table/part_1  2..4  [2, 8]  float32  64     1
/// table/part_2  4..5  [1, 8]  float32  32     0
/// bias                [8]     float32  32     1
///
/// server 0: 2 variables, 96 bytes
/// server 1: 2 variables, 96 bytes
/// "
/// );
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Placement {
    choice: Choice,
    placed: Vec<Placed>,
    /// The index range of each variable in `placed`.
    by_name: BTreeMap<String, Range<usize>>,
}

/// A state of a placement to which it can return: see [`Placement::mark`].
#[derive(Clone, Debug)]
pub struct PlacementSnapshot {
    choice: Choice,
    placed: usize,
}

/// A variable on a server, or a shard of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The name of the variable; for a shard, followed by `/part_` and the index of the shard.
    pub name: String,
    /// The rows of the variable that the shard contains; `None` if the variable is not split.
    pub rows: Option<Range<usize>>,
    /// The shape of the variable or shard.
    pub shape: Vec<usize>,
    /// The dtype of the variable.
    pub dtype: DType,
    /// The size of the values in bytes, assuming 16 bytes for each string. Slots are not included.
    pub bytes: u64,
    /// The index of the server.
    pub server: usize,
    /// The rows that were read individually since the server started; `None` if this is unknown.
    pub reads: Option<RowReads>,
}

impl Placement {
    /// Creates a placement without variables, for at least one server.
    ///
    /// # Errors
    /// - [`Error::NoServers`]: `servers` is 0.
    pub fn new(servers: usize, policy: PlacementPolicy) -> Result<Self> {
        if servers == 0 {
            return Err(Error::NoServers);
        }
        Ok(Self { choice: Choice::new(policy, servers), placed: Vec::new(), by_name: BTreeMap::new() })
    }

    /// Places a new variable, split by `partition`, and returns the server of each shard. If `partition` is `None`, the
    /// variable is not split, and the result is one server.
    ///
    /// # Errors
    /// - [`Error::PlacedTwice`]: the name is in use.
    /// - [`Error::Rows`]: the partition has a different number of rows.
    pub fn place(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        partition: Option<RowPartition>,
    ) -> Result<Vec<usize>> {
        let parts = parts(name, shape, dtype, partition)?;
        self.add(name, parts, |choice, part| choice.next(&part.name, part.bytes))
    }

    /// Places a new variable on the server of variable `with` or, if that variable has shards, of its last shard. The
    /// new variable is not split. The round-robin order does not change.
    ///
    /// # Errors
    /// - [`Error::PlacedTwice`]: the name is in use.
    /// - [`Error::NotPlaced`]: the other variable was not placed.
    pub fn colocate(&mut self, name: &str, shape: &[usize], dtype: DType, with: &str) -> Result<usize> {
        let last = self.by_name.get(with).and_then(|range| self.placed.get(range.end.checked_sub(1)?));
        let server = last.map(|placed| placed.server);
        let server = server.ok_or_else(|| Error::NotPlaced { name: with.to_string() })?;
        self.place_on(name, shape, dtype, server)
    }

    /// Places a new variable on the given server. The new variable is not split. The round-robin order does not change.
    ///
    /// # Errors
    /// - [`Error::PlacedTwice`]: the name is in use.
    /// - [`Error::NoSuchServer`]: there is no server with this index.
    pub fn place_on(&mut self, name: &str, shape: &[usize], dtype: DType, server: usize) -> Result<usize> {
        if server >= self.servers() {
            return Err(Error::NoSuchServer { server, servers: self.servers() });
        }
        let parts = parts(name, shape, dtype, None)?;
        self.add(name, parts, |choice, part| choice.take(server, part.bytes))?;
        Ok(server)
    }

    /// Records a variable that already exists, with the server of each shard.
    ///
    /// # Errors
    /// Returns the errors of [`place`](Self::place), and:
    /// - [`Error::Partitions`]: the number of servers differs from the number of shards.
    /// - [`Error::NoSuchServer`]: there is no server with this index.
    pub fn record(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        (partition, servers): (Option<RowPartition>, &[usize]),
    ) -> Result<()> {
        let parts = parts(name, shape, dtype, partition)?;
        if parts.len() != servers.len() {
            return Err(Error::Partitions { partitions: vec![servers.len()], shape: shape.to_vec() });
        }
        if let Some(server) = servers.iter().copied().find(|server| *server >= self.servers()) {
            return Err(Error::NoSuchServer { server, servers: self.servers() });
        }
        let mut servers = servers.iter().copied();
        self.add(name, parts, |choice, part| choice.take(servers.next().unwrap_or_default(), part.bytes))?;
        Ok(())
    }

    /// Returns the current state, to which [`undo`](Placement::undo) can return if a variable cannot be created.
    ///
    /// ```
    /// use distribute_ps_tables::{Placement, PlacementPolicy};
    /// use distribute_tensor::DType;
    ///
    /// let mut placement = Placement::new(2, PlacementPolicy::RoundRobin)?;
    /// let before = placement.mark();
    /// assert_eq!(placement.place("bias", &[8], DType::F32, None)?, [0]);
    /// placement.undo(before);
    /// assert_eq!(placement.place("scale", &[8], DType::F32, None)?, [0]);
    /// assert!(placement.of("bias").is_none());
    /// # Ok::<(), distribute_ps_tables::Error>(())
    /// ```
    pub fn mark(&self) -> PlacementSnapshot {
        PlacementSnapshot { choice: self.choice.clone(), placed: self.placed.len() }
    }

    /// Undoes all placements since [`mark`](Self::mark) returned `to`.
    pub fn undo(&mut self, to: PlacementSnapshot) {
        self.choice = to.choice;
        self.placed.truncate(to.placed);
        self.by_name.retain(|_, range| range.end <= to.placed);
    }

    /// Returns all variables and shards, in the order of their creation.
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// Returns the entries of a variable, one for each shard; `None` if it was not placed.
    pub fn of(&self, name: &str) -> Option<&[Placed]> {
        self.by_name.get(name).and_then(|range| self.placed.get(range.clone()))
    }

    /// Returns the number of servers.
    pub fn servers(&self) -> usize {
        self.choice.loads().len()
    }

    /// Returns the number of bytes on each server.
    pub fn loads(&self) -> &[u64] {
        self.choice.loads()
    }

    /// Sets the [reads](Placed::reads) of all variables and shards. `reads` returns those of the table with the given
    /// name on a server.
    pub fn set_reads(&mut self, reads: impl Fn(usize, &str) -> Option<RowReads>) {
        self.placed.iter_mut().for_each(|placed| placed.reads = reads(placed.server, &placed.name));
    }

    fn add(
        &mut self,
        name: &str,
        parts: Vec<Placed>,
        mut choose: impl FnMut(&mut Choice, &Placed) -> usize,
    ) -> Result<Vec<usize>> {
        if self.by_name.contains_key(name) {
            return Err(Error::PlacedTwice { name: name.to_string() });
        }
        let start = self.placed.len();
        for part in parts {
            let server = choose(&mut self.choice, &part);
            self.placed.push(Placed { server, ..part });
        }
        self.by_name.insert(name.to_string(), start..self.placed.len());
        Ok(self.placed[start..].iter().map(|placed| placed.server).collect())
    }
}

/// Returns an entry for each shard of a variable. The caller sets the server of each entry.
fn parts(name: &str, shape: &[usize], dtype: DType, partition: Option<RowPartition>) -> Result<Vec<Placed>> {
    let part = |name, rows, shape: Vec<usize>| {
        let element = dtype.bytes().unwrap_or(16) as u64;
        let bytes = shape.iter().fold(element, |bytes, size| bytes.saturating_mul(*size as u64));
        Placed { name, rows, shape, dtype, bytes, server: 0, reads: None }
    };
    let Some(partition) = partition else { return Ok(vec![part(name.to_string(), None, shape.to_vec())]) };
    let rows = shape.first().copied().unwrap_or(0);
    if rows != partition.rows() {
        return Err(Error::Rows { operation: "placement", expected: rows, found: partition.rows() });
    }
    let shard = |(shard, range)| {
        let mut shape = shape.to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = partition.len(shard);
        }
        part(shard_name(name, shard), Some(range), shape)
    };
    Ok(partition.ranges().enumerate().map(shard).collect())
}

/// Returns the name of a shard of a variable.
pub fn shard_name(variable: &str, shard: usize) -> String {
    format!("{variable}/part_{shard}")
}

/// Returns the name of the variable to which a table belongs, and the index of the shard if the name is that of a
/// [shard](shard_name).
pub fn variable_of(table: &str) -> (&str, Option<usize>) {
    let shard = table.rsplit_once("/part_").and_then(|(name, shard)| Some((name, shard.parse().ok()?)));
    shard.map_or((table, None), |(name, shard)| (name, Some(shard)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn placement(servers: usize, policy: PlacementPolicy) -> Placement {
        Placement::new(servers, policy).unwrap()
    }

    #[test]
    fn place_1_shards_count_each_and_colocated_variables_do_not() {
        let mut placement = placement(3, PlacementPolicy::default());
        let five = Some(RowPartition::div(10, 5));
        assert_eq!(placement.place("a", &[10], DType::F32, five).unwrap(), [0, 1, 2, 0, 1]);
        // COLO-4
        assert_eq!(placement.colocate("a/slot", &[10], DType::F32, "a").unwrap(), 1);
        assert_eq!(placement.place("b", &[], DType::I64, None).unwrap(), [2]);
        assert_eq!(placement.of("a").unwrap()[4].name, "a/part_4");
        assert_eq!(placement.of("b").unwrap()[0].rows, None);
        assert_eq!(placement.of("a/slot").unwrap()[0].shape, [10]);
        assert_eq!(placement.loads(), [16, 16 + 40, 8 + 8]);
        assert_eq!(placement.place_on("c", &[2], DType::F32, 0).unwrap(), 0);
        assert_eq!(placement.place("d", &[], DType::F32, None).unwrap(), [0]);
        assert!(matches!(
            placement.place_on("e", &[], DType::F32, 3),
            Err(Error::NoSuchServer { server: 3, servers: 3 })
        ));
    }

    #[test]
    fn reads_are_columns_once_rows_have_been_read() {
        let mut placement = placement(2, PlacementPolicy::RoundRobin);
        placement.place("words", &[4, 2], DType::F32, Some(RowPartition::div(4, 2))).unwrap();
        placement.place("bias", &[2], DType::F32, None).unwrap();
        let before = placement.to_string();
        placement.set_reads(|_, _| Some(RowReads::default()));
        assert_eq!(placement.to_string(), before);
        // The server of the last variable has not answered.
        placement.set_reads(|server, name| match (server, name) {
            (1, "words/part_1") => Some(RowReads { rows: 30, bytes: 240 }),
            (_, "bias") => None,
            _ => Some(RowReads::default()),
        });
        let expected = "\
variable      rows  shape   dtype    bytes  server  rows read  bytes read
words/part_0  0..2  [2, 2]  float32  16     0       0          0
words/part_1  2..4  [2, 2]  float32  16     1       30         240
bias                [2]     float32  8      0       -          -

server 0: 2 variables, 24 bytes, 0 rows read
server 1: 1 variable, 16 bytes, 30 rows read
";
        assert_eq!(placement.to_string(), expected);
        assert_eq!(placement.of("words").unwrap()[1].reads.unwrap().rows, 30);
    }

    #[test]
    fn names_of_shards_name_their_variable() {
        assert_eq!(variable_of(&shard_name("a/b", 12)), ("a/b", Some(12)));
        for no_shard in ["w", "w/part_", "w/part_x", "part_3"] {
            assert_eq!(variable_of(no_shard), (no_shard, None));
        }
    }

    #[test]
    fn existing_tables_are_recorded_with_their_server() {
        let mut placement = placement(3, PlacementPolicy::default());
        let two = Some(RowPartition::div(10, 2));
        placement.record("a", &[10], DType::F32, (two, &[2, 1])).unwrap();
        assert_eq!(placement.of("a").unwrap()[0].server, 2);
        assert_eq!(placement.loads(), [0, 20, 20]);
        // The round-robin order does not change.
        assert_eq!(placement.place("b", &[], DType::F32, None).unwrap(), [0]);
        let again = placement.record("a", &[10], DType::F32, (two, &[2, 1]));
        assert!(matches!(again, Err(Error::PlacedTwice { .. })));
        for servers in [&[0][..], &[0, 3]] {
            assert!(placement.record("c", &[10], DType::F32, (two, servers)).is_err());
        }
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused_and_not_placed() {
        assert!(matches!(Placement::new(0, PlacementPolicy::RoundRobin), Err(Error::NoServers)));
        let mut placement = placement(2, PlacementPolicy::RoundRobin);
        placement.place("a", &[4], DType::F32, None).unwrap();
        let twice = placement.place("a", &[4], DType::F32, None).unwrap_err();
        assert_eq!(twice.to_string(), "placement: a variable named \"a\" exists already; names are unique");
        assert!(matches!(placement.colocate("b", &[], DType::F32, "c"), Err(Error::NotPlaced { .. })));
        let rows = placement.place("b", &[4], DType::F32, Some(RowPartition::div(5, 2)));
        assert!(matches!(rows, Err(Error::Rows { .. })));
        assert_eq!(placement.placed().len(), 1);
        assert_eq!(placement.place("b", &[4], DType::F32, None).unwrap(), [1]);
    }

    #[test]
    fn place_3_greedy_takes_the_first_of_those_with_the_least_bytes() {
        let mut placement = placement(3, PlacementPolicy::GreedyByBytes);
        let servers: Vec<_> = [100, 10, 20, 15, 1, 60, 8]
            .iter()
            .enumerate()
            .map(|(i, rows)| placement.place(&format!("v{i}"), &[*rows], DType::U8, None).unwrap()[0])
            .collect();
        // Loads: 100 0 0, 100 10 0, 100 10 20, 100 25 20, 100 25 21, 100 25 81.
        assert_eq!(servers, [0, 1, 2, 1, 2, 2, 1]);
    }

    proptest! {
        #[test]
        fn greedy_is_never_off_by_more_than_the_largest(
            servers in 1usize..9,
            sizes in prop::collection::vec(0usize..1000, 0..60),
        ) {
            let mut placement = placement(servers, PlacementPolicy::GreedyByBytes);
            for (i, size) in sizes.iter().enumerate() {
                placement.place(&i.to_string(), &[*size], DType::U8, None).unwrap();
            }
            let loads = placement.loads();
            let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            prop_assert!(spread <= sizes.iter().max().map_or(0, |size| *size as u64), "{:?}", loads);
            prop_assert_eq!(loads.iter().sum::<u64>(), sizes.iter().sum::<usize>() as u64);
        }

        #[test]
        fn by_hash_a_server_more_takes_from_the_others_and_moves_nothing_between_them(
            servers in 1usize..9,
            names in prop::collection::hash_set("[a-z/0-9]{1,12}", 0..60),
        ) {
            let of = |servers| {
                let mut placement = placement(servers, PlacementPolicy::ByHash);
                let place = |name: &String| placement.place(name, &[1], DType::F32, None).unwrap()[0];
                let mut names: Vec<_> = names.iter().collect();
                // The order of creation does not matter.
                names.sort();
                names.into_iter().map(place).collect::<Vec<_>>()
            };
            for (before, after) in of(servers).into_iter().zip(of(servers + 1)) {
                prop_assert!(after == before || after == servers);
            }
        }
    }

    #[test]
    fn by_hash_servers_have_about_equally_many() {
        let mut placement = placement(4, PlacementPolicy::ByHash);
        let mut counts = [0usize; 4];
        for i in 0..4000 {
            counts[placement.place(&format!("layer_{i}/kernel"), &[1], DType::F32, None).unwrap()[0]] += 1;
        }
        assert!(counts.iter().all(|n| n.abs_diff(1000) < 120), "{counts:?}");
    }
}
