//! The display of a placement as a text table.

use super::{Placed, Placement};
use std::fmt;

/// The titles of the columns. The last two are displayed only if rows have been read.
const HEAD: [&str; 8] = ["variable", "rows", "shape", "dtype", "bytes", "server", "rows read", "bytes read"];

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_read = self.placed().iter().any(|placed| placed.reads.is_some_and(|reads| reads.rows > 0));
        let columns = if is_read { HEAD.len() } else { HEAD.len() - 2 };
        let head = HEAD.map(String::from);
        let lines: Vec<[String; 8]> = std::iter::once(head).chain(self.placed().iter().map(line)).collect();
        let mut widths = [0; HEAD.len()];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        for line in &lines {
            let (last, rest) = line[..columns].split_last().unwrap_or((&line[0], &[]));
            for (cell, width) in rest.iter().zip(widths) {
                write!(f, "{cell:width$}  ")?;
            }
            writeln!(f, "{last}")?;
        }
        writeln!(f)?;
        for (server, bytes) in self.loads().iter().enumerate() {
            let here: Vec<_> = self.placed().iter().filter(|placed| placed.server == server).collect();
            let variables = if here.len() == 1 { "variable" } else { "variables" };
            write!(f, "server {server}: {} {variables}, {bytes} bytes", here.len())?;
            if is_read {
                let rows: u64 = here.iter().filter_map(|placed| Some(placed.reads?.rows)).sum();
                write!(f, ", {rows} rows read")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn line(placed: &Placed) -> [String; 8] {
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    [
        placed.name.clone(),
        placed.rows.as_ref().map_or_else(String::new, |rows| format!("{rows:?}")),
        format!("{:?}", placed.shape),
        placed.dtype.to_string(),
        placed.bytes.to_string(),
        placed.server.to_string(),
        count(placed.reads.map(|reads| reads.rows)),
        count(placed.reads.map(|reads| reads.bytes)),
    ]
}
