//! The opening of CSV files, and the search for their columns.

use super::Column;
use super::block::Layout;
use super::missing::{Missing, MissingFields};
use crate::file::ElementLimit;
use crate::{Compression, Error, Files, Location, Result};
use std::io::{ErrorKind, Read};

/// The settings for reading the files of a dataset, with the columns of its first nonempty file.
pub(super) struct CsvFormat {
    pub(super) header: bool,
    pub(super) dialect: Dialect,
    pub(super) columns: Columns,
    pub(super) layout: Layout,
    pub(super) missing: Missing,
}

/// The delimiter and the quoting of CSV files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    /// The byte between fields.
    pub(super) delimiter: u8,
    /// Whether fields may be quoted.
    pub(super) quoting: bool,
}

/// The number and the names of a file's columns, from its first row.
pub(super) struct Columns {
    file: Location,
    /// The number of columns; 0 if the file is empty.
    pub(super) count: usize,
    /// The names of the columns; empty if there is no header line.
    names: Vec<String>,
    /// The bytes of the names. Different names may have the same text if they are not UTF-8.
    raw: Vec<Vec<u8>>,
}

impl Columns {
    /// Reads the first row of a file, and returns its columns: their names if it is a header, otherwise only their
    /// number.
    fn read(file: &Location, header: bool, dialect: Dialect) -> Result<Self> {
        let delimiter = dialect.delimiter;
        let mut first = ::csv::ByteRecord::new();
        let metered =
            Metered { text: Compression::Auto.open(file)?, limit: file.limit(), delimiter, taken: 0 };
        let mut lines = reader(metered, dialect, false);
        lines.read_byte_record(&mut first).map_err(|error| match failure(file, error) {
            Error::Io { path, source } if source.kind() == ErrorKind::FileTooLarge => {
                Error::Damaged { path, offset: 0, what: source.to_string() }
            }
            other => other,
        })?;
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let raw: Vec<Vec<u8>> = first.iter().filter(|_| header).map(<[u8]>::to_vec).collect();
        let names = raw.iter().map(|raw| name(raw)).collect();
        Ok(Self { file: file.clone(), count: first.len(), names, raw })
    }

    /// Returns the index of a column. Returns an error if the column is not in the file, or if its name is ambiguous.
    pub(super) fn find(&self, column: &Column) -> Result<usize> {
        let (found, text) = match column {
            Column::At(place) => ((*place < self.count).then_some(*place), format!("{place}")),
            Column::Named(name) => (self.names.iter().position(|n| n == name), format!("'{name}'")),
        };
        if let (Some(first), Column::Named(name)) = (found, column)
            && let Some(again) = self.names.iter().skip(first + 1).position(|other| other == name)
        {
            return Err(Error::Csv {
                path: self.file.to_string(),
                line: 1,
                column: first + again + 2,
                found: format!("{name:?} once more"),
                expected: format!(
                    "another name than that of column {}; use the column's position instead",
                    first + 1
                ),
            });
        }
        found.ok_or_else(|| {
            let known = match (self.count, column, self.names.is_empty()) {
                (0, ..) => "no rows".to_string(),
                (_, Column::Named(_), true) => {
                    "no header line: use the column's position instead".to_string()
                }
                (_, Column::Named(_), false) => self.names.join(", "),
                (count, Column::At(_), _) => format!("columns 0 to {}", count - 1),
            };
            Error::NoColumn { path: self.file.to_string(), column: text, known }
        })
    }

    /// Returns ` for 'NAME'` for error messages; an empty text if the column has no name.
    pub(super) fn describe(&self, place: usize) -> String {
        self.names.get(place).map_or(String::new(), |name| format!(" for '{name}'"))
    }
}

impl CsvFormat {
    /// Creates the settings from the first nonempty file: reads its columns, and finds the requested ones with
    /// `layout`. If all files are empty, there are no columns. Returns [`Error::Empty`] if the list of files is
    /// empty.
    pub(super) fn look(
        files: &Files,
        header: bool,
        dialect: Dialect,
        missing: &MissingFields,
        layout: impl FnOnce(&Columns) -> Result<Layout>,
    ) -> Result<Self> {
        let mut columns = None;
        for file in files {
            let found = Columns::read(file, header, dialect)?;
            let empty = found.count == 0;
            columns = Some(columns.filter(|_| empty).unwrap_or(found));
            if !empty {
                break;
            }
        }
        let columns = columns.ok_or(Error::Empty { operation: "reading CSV" })?;
        let layout = layout(&columns)?;
        let missing = missing.find(&columns, &layout)?;
        Ok(Self { header, dialect, columns, layout, missing })
    }

    /// Checks that a file has the same header as the file whose columns were read, or is empty. Does nothing if there
    /// are no header lines.
    pub(super) fn check_header(&self, file: &Location) -> Result<()> {
        if !self.header || *file == self.columns.file {
            return Ok(());
        }
        let mine = Columns::read(file, self.header, self.dialect)?;
        // A file without a line has no rows either.
        if mine.count == 0 || mine.raw == self.columns.raw {
            return Ok(());
        }
        let text = |name: &[u8]| match std::str::from_utf8(name) {
            Ok(name) => format!("{name:?}"),
            Err(_) => format!("\"{}\"", name.escape_ascii()),
        };
        let names =
            |columns: &Columns, at: usize| columns.raw.get(at).map_or("nothing".into(), |name| text(name));
        let differs = |at: &usize| mine.raw.get(*at) != self.columns.raw.get(*at);
        let column = (0..mine.count.max(self.columns.count)).find(differs).unwrap_or_default();
        Err(Error::Csv {
            path: file.to_string(),
            line: 1,
            column: column + 1,
            found: names(&mine, column),
            expected: format!("{}, as in '{}'", names(&self.columns, column), self.columns.file),
        })
    }
}

/// Estimates the number of bytes that a row occupies: its text, and the memory for each of its fields.
pub(super) fn cost(row: &[u8], delimiter: u8) -> u64 {
    /// The memory in bytes of a field in addition to its text: its end during parsing and, for text, the string.
    const FIELD: u64 = 32;
    let fields = row.iter().filter(|byte| **byte == delimiter).count();
    row.len() as u64 + FIELD * fields as u64
}

/// A reader that fails when the first row of a text exceeds the limit for one element.
struct Metered<R> {
    text: R,
    limit: ElementLimit,
    delimiter: u8,
    taken: u64,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.text.read(buffer)?;
        self.taken += cost(buffer.get(..read).unwrap_or_default(), self.delimiter);
        let too_large = |what| std::io::Error::new(ErrorKind::FileTooLarge, what);
        self.limit.check("the first row", self.taken.saturating_sub(UNCOUNTED)).map_err(too_large)?;
        Ok(read)
    }
}

/// The tolerance of the limit in bytes. The parser reads beyond the end of the row, so small limits are not
/// exact.
const UNCOUNTED: u64 = 1 << 20;

/// Returns a CSV reader for the rows of a text.
pub(super) fn reader<R: Read>(text: R, dialect: Dialect, skip_header: bool) -> ::csv::Reader<R> {
    ::csv::ReaderBuilder::new()
        .has_headers(skip_header)
        .delimiter(dialect.delimiter)
        .quoting(dialect.quoting)
        // Rows of another width are detected in this crate, so that the error can name the column.
        .flexible(true)
        .from_reader(text)
}

/// Returns the line, counted from 1, of the row that begins at byte `start` of the text.
///
/// The parser skips blank lines without counting them. The text is therefore read again, up to the first byte of the
/// row.
pub(super) fn line(file: &Location, start: u64) -> Result<u64> {
    let (mut line, mut after_cr) = (1, false);
    for (at, byte) in Compression::Auto.open(file)?.bytes().enumerate() {
        let byte = byte.map_err(|e| file.io_error(e))?;
        if at as u64 >= start && byte != b'\n' && byte != b'\r' {
            break;
        }
        // CR LF is a single line ending.
        line += u64::from(byte == b'\r' || (byte == b'\n' && !after_cr));
        after_cr = byte == b'\r';
    }
    Ok(line)
}

/// Converts an error of the CSV parser. Its only errors are those of reading or decompressing the text.
pub(super) fn failure(file: &Location, error: ::csv::Error) -> Error {
    let source = match error.into_kind() {
        ::csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    };
    file.io_error(source)
}
