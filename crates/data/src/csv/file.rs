//! A CSV file: how it is opened, and which columns it has.

use super::Column;
use super::block::Layout;
use crate::{Compression, Error, Location, Result};
use std::io::Read;

/// A CSV file of which the first line has been seen.
pub(crate) struct CsvFile {
    location: Location,
    header: bool,
    delimiter: u8,
    pub(crate) columns: Columns,
    pub(crate) layout: Layout,
}

/// The columns of a file.
pub(crate) struct Columns {
    path: String,
    /// How many there are; 0 if the file is empty.
    pub(crate) count: usize,
    /// Their names, if there is a header line.
    names: Vec<String>,
}

impl Columns {
    /// The place of a column.
    pub(crate) fn find(&self, column: &Column) -> Result<usize> {
        let (found, text) = match column {
            Column::At(place) => ((*place < self.count).then_some(*place), format!("{place}")),
            Column::Named(name) => (self.names.iter().position(|n| n == name), format!("'{name}'")),
        };
        found.ok_or_else(|| {
            let known = match (self.count, column, self.names.is_empty()) {
                (0, ..) => "no rows".to_string(),
                (_, Column::Named(_), true) => "no header line: give the column's place instead".to_string(),
                (_, Column::Named(_), false) => self.names.join(", "),
                (count, Column::At(_), _) => format!("columns 0 to {}", count - 1),
            };
            Error::NoColumn { path: self.path.clone(), column: text, known }
        })
    }

    /// What an error calls a column: its name, if it has one.
    pub(crate) fn describe(&self, place: usize) -> String {
        self.names.get(place).map_or(String::new(), |name| format!(" for '{name}'"))
    }
}

impl CsvFile {
    /// Looks at the first line and lets `layout` find its columns.
    pub(crate) fn open(
        location: Location,
        header: bool,
        delimiter: u8,
        layout: impl FnOnce(&Columns) -> Result<Layout>,
    ) -> Result<Self> {
        let path = location.to_string();
        let mut file = CsvFile {
            location,
            header,
            delimiter,
            columns: Columns { path, count: 0, names: Vec::new() },
            layout: Layout::Features,
        };
        let mut first = ::csv::ByteRecord::new();
        file.reader(false)?.read_byte_record(&mut first).map_err(|e| file.error(e))?;
        file.columns.count = first.len();
        if header {
            file.columns.names =
                first.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        }
        file.layout = layout(&file.columns)?;
        Ok(file)
    }

    /// Reads the rows from the first one on.
    pub(crate) fn rows(&self) -> Result<::csv::Reader<Box<dyn Read + Send>>> {
        self.reader(self.header)
    }

    fn reader(&self, skip_header: bool) -> Result<::csv::Reader<Box<dyn Read + Send>>> {
        let text: Box<dyn Read + Send> = Compression::Auto.open(&self.location)?;
        Ok(::csv::ReaderBuilder::new()
            .has_headers(skip_header)
            .delimiter(self.delimiter)
            // Rows of another width are found by us, so that the error can name the column.
            .flexible(true)
            .from_reader(text))
    }

    pub(crate) fn name(&self) -> String {
        self.location.to_string()
    }

    /// The line, from 1 on, of the row that was found at byte `start` of the text.
    ///
    /// The parser passes over blank lines, with any kind of line ends, without counting them to the row. So where a
    /// row is broken the text is read once more, up to its first byte that ends no line.
    pub(crate) fn line(&self, start: u64) -> Result<u64> {
        let (mut line, mut after_cr) = (1, false);
        for (at, byte) in Compression::Auto.open(&self.location)?.bytes().enumerate() {
            let byte = byte.map_err(|e| self.location.io_error(e))?;
            if at as u64 >= start && byte != b'\n' && byte != b'\r' {
                break;
            }
            // CR LF is one end of a line.
            line += u64::from(byte == b'\r' || (byte == b'\n' && !after_cr));
            after_cr = byte == b'\r';
        }
        Ok(line)
    }

    /// What went wrong below the rows: in reading or in taking gzip off.
    pub(crate) fn error(&self, error: ::csv::Error) -> Error {
        let source = match error.into_kind() {
            ::csv::ErrorKind::Io(error) => error,
            other => std::io::Error::other(format!("{other:?}")),
        };
        self.location.io_error(source)
    }

    pub(crate) fn describe(&self) -> String {
        format!("CSV file '{}', {} columns", self.name(), self.columns.count)
    }
}
