//! The display of a placement as a text table.

use super::{Placed, Placement};
use std::fmt;

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["variable", "rows", "shape", "dtype", "bytes", "server"].map(String::from);
        let lines: Vec<[String; 6]> = std::iter::once(head).chain(self.placed().iter().map(line)).collect();
        let mut widths = [0; 6];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        for [rest @ .., last] in &lines {
            for (cell, width) in rest.iter().zip(widths) {
                write!(f, "{cell:width$}  ")?;
            }
            writeln!(f, "{last}")?;
        }
        writeln!(f)?;
        for (server, bytes) in self.loads().iter().enumerate() {
            let count = self.placed().iter().filter(|placed| placed.server == server).count();
            let variables = if count == 1 { "variable" } else { "variables" };
            writeln!(f, "server {server}: {count} {variables}, {bytes} bytes")?;
        }
        Ok(())
    }
}

fn line(placed: &Placed) -> [String; 6] {
    [
        placed.name.clone(),
        placed.rows.as_ref().map_or_else(String::new, |rows| format!("{rows:?}")),
        format!("{:?}", placed.shape),
        placed.dtype.to_string(),
        placed.bytes.to_string(),
        placed.server.to_string(),
    ]
}
