//! The format that reads CSV files in sections of complete rows.

use super::file::{CsvFormat, Dialect, cost, line, reader};
use super::plain;
use super::section::Section;
use crate::broken::{Broken, SkippedRecords};
use crate::file_source::{Format, Reading, Sections, Work};
use crate::worker_pool::check_threads;
use crate::{Compression, ElementSpec, Error, Location, Result};
use csv_core::ReadRecordResult;
use std::io::{BufRead, Read};
use std::sync::Arc;

/// The format of the files of one dataset.
pub(super) struct CsvRows {
    pub(super) format: Arc<CsvFormat>,
    pub(super) threads: usize,
    pub(super) skipped: Option<SkippedRecords>,
}

impl Format for CsvRows {
    fn describe(&self) -> String {
        format!("CSV, {} columns,", self.format.columns.count)
    }

    fn identity(&self) -> String {
        let CsvFormat { header, dialect: Dialect { delimiter, quoting }, columns, layout, missing } =
            self.format.as_ref();
        format!(
            "CSV, {} columns, header {header}, delimiter {delimiter}, quoting {quoting}, {}, {}",
            columns.count,
            layout.identity(),
            missing.identity()
        )
    }

    fn spec(&self) -> Option<ElementSpec> {
        Some(self.format.layout.spec(self.format.columns.count))
    }

    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading> {
        self.format.check_header(file)?;
        Ok(Reading::Sections(Box::new(CsvSections {
            format: self.format.clone(),
            file: file.clone(),
            text: Compression::Auto.open(file)?,
            offset: 0,
            bytes: Vec::new(),
            ended: false,
            failed: None,
            broken: broken.clone(),
        })))
    }

    fn skipped(&self) -> Option<&SkippedRecords> {
        self.skipped.as_ref()
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn check(&self) -> Result<()> {
        check_threads("Csv::threads", self.threads)
    }
}

/// The minimum number of bytes that are read from a file at a time. A section consists of the complete rows among them.
const SECTION: usize = 1 << 18;

struct CsvSections {
    format: Arc<CsvFormat>,
    file: Location,
    text: Box<dyn BufRead + Send>,
    /// The offset of `bytes` in the decompressed text.
    offset: u64,
    /// The bytes that have been read but are not in a section yet.
    bytes: Vec<u8>,
    ended: bool,
    /// The error that ended reading. It is returned after the rows before it.
    failed: Option<Error>,
    broken: Broken,
}

impl CsvSections {
    /// Checks that the incomplete row in `bytes` does not exceed the limit for one element yet.
    fn check(&self) -> Result<()> {
        // Many rows are read at once, so small limits are not exact.
        if self.bytes.len() <= 2 * SECTION {
            return Ok(());
        }
        let taken = cost(&self.bytes, self.format.dialect.delimiter);
        self.file.limit().check("a row", taken).map_err(|what| Error::Damaged {
            path: self.file.to_string(),
            offset: self.offset,
            what,
        })
    }

    /// Reads more bytes from the file into `bytes`. Sets `ended` at the end of the file, and after an error, which is
    /// kept in `failed`.
    fn fill(&mut self) {
        // Doubles the bytes for a row that is longer than them, but reads no more than are already there.
        let limit = usize::try_from(self.file.limit().bytes()).unwrap_or(usize::MAX);
        let more = self.bytes.len().min(limit.saturating_sub(self.bytes.len())).max(SECTION);
        self.bytes.reserve_exact(more);
        match self.text.by_ref().take(more as u64).read_to_end(&mut self.bytes) {
            Ok(read) => self.ended = read < more,
            Err(error) => {
                self.failed = Some(self.file.io_error(error));
                self.ended = true;
            }
        }
    }

    /// Returns the length in bytes of the complete rows at the beginning of `bytes`. At the end of the file, these are
    /// all bytes; a last row that ends within quotes is first removed and recorded as an error.
    fn whole(&mut self) -> usize {
        let plain = plain::is_plain(&self.bytes, self.format.dialect);
        if self.ended && self.failed.is_none() {
            if !plain {
                self.check_quotes();
            }
            return self.bytes.len();
        }
        if plain { plain::whole(&self.bytes) } else { self.ended_rows(&self.bytes) }
    }

    /// Removes the last row from `bytes` if it ends within quotes, and keeps an error in `failed`. Such a row may
    /// contain many rows after the missing quote.
    fn check_quotes(&mut self) {
        // A line ending ends a row, unless it is within quotes.
        let ended = self.ended_rows(&[&self.bytes, &b"\n"[..]].concat()).min(self.bytes.len());
        let rest = self.bytes.split_off(ended);
        if rest.iter().all(|byte| b"\r\n".contains(byte)) {
            self.bytes.extend(rest);
            return;
        }
        let mut row = ::csv::ByteRecord::new();
        let column = match reader(rest.as_slice(), self.format.dialect, false).read_byte_record(&mut row) {
            Ok(_) => row.len(),
            Err(_) => 1,
        };
        let error = line(&self.file, self.offset + ended as u64).map(|line| Error::Csv {
            path: self.file.to_string(),
            line,
            column,
            found: "a quote that is never closed".into(),
            expected: "another one; where quotes are text, turn them off: `Csv::without_quoting`".into(),
        });
        self.failed = Some(error.unwrap_or_else(|error| error));
    }

    /// Returns the length in bytes of the complete rows at the beginning of a text.
    fn ended_rows(&self, text: &[u8]) -> usize {
        let Dialect { delimiter, quoting } = self.format.dialect;
        // A line may end within quotes.
        let mut parser = csv_core::ReaderBuilder::new().delimiter(delimiter).quoting(quoting).build();
        // The contents of the fields don't matter, so small buffers are enough.
        let (mut fields, mut ends) = ([0; 4096], [0; 64]);
        let (mut at, mut whole) = (0, 0);
        loop {
            let rest = text.get(at..).unwrap_or_default();
            let (found, read, ..) = parser.read_record(rest, &mut fields, &mut ends);
            at += read;
            match found {
                ReadRecordResult::Record => whole = at,
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {}
                // The last row may be incomplete. (An empty rest would mean the end of the text to the
                // parser.)
                ReadRecordResult::InputEmpty | ReadRecordResult::End => return whole,
            }
            if at == text.len() {
                return whole;
            }
        }
    }
}

impl Sections for CsvSections {
    fn next(&mut self) -> Option<Result<Work>> {
        let whole = loop {
            match if self.bytes.is_empty() { 0 } else { self.whole() } {
                0 if !self.ended => match self.check() {
                    Ok(()) => self.fill(),
                    Err(error) => return Some(Err(error)),
                },
                whole => break whole,
            }
        };
        if whole == 0 {
            return self.failed.take().map(Err);
        }
        let rest = self.bytes.get(whole..).unwrap_or_default().to_vec();
        let mut bytes = std::mem::replace(&mut self.bytes, rest);
        bytes.truncate(whole);
        let (format, file, broken) = (self.format.clone(), self.file.clone(), self.broken.clone());
        let section = Section { format, file, offset: self.offset, bytes, broken };
        self.offset += whole as u64;
        Some(Ok(Work { bytes: whole, make: Box::new(move || section.parse_all()) }))
    }
}

#[cfg(test)]
mod tests {
    use crate::csv::{ColumnType, Csv};
    use distribute_testing::watched;

    /// Returns the text of rows that fill several sections. Each row has a number and a text, which may contain line
    /// endings and quotes from row `odd_from` on. `end` is the line ending.
    fn long(end: &str, odd_from: usize) -> String {
        let row = |i: usize| match i {
            i if i < odd_from => format!("{i},plain{end}"),
            i if i % 3 == 0 => format!("{i},\"a \"\"b\"\"{end}{end}{i}\"{end}"),
            i => format!("{i},\u{feff}{}{end}{end}", "x".repeat(i % 50)),
        };
        (0..30_000).map(row).collect()
    }

    #[test]
    fn sections_are_the_rows_of_the_whole_wherever_lines_end() {
        watched(|| {
            for (end, odd_from) in [("\n", 0), ("\r\n", 29_000), ("\r", 50_000), ("\r\n", 50_000)] {
                let text = long(end, odd_from);
                let mut reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
                let rows: Vec<_> = reader.byte_records().map(Result::unwrap).collect();
                let expected: Vec<_> = rows.iter().map(|row| row[1].to_vec()).collect();
                for threads in [1, 3] {
                    let csv = Csv::bytes("long.csv", text.clone()).without_header().threads(threads);
                    let columns = [(0, ColumnType::I64), (1, ColumnType::Text)];
                    let read = csv.columns(columns).unwrap().load().unwrap();
                    assert_eq!(read["0"].to_vec::<i64>().unwrap(), (0..30_000).collect::<Vec<_>>());
                    assert_eq!(read["1"].to_vec::<Vec<u8>>().unwrap(), expected);
                }
            }
        });
    }

    #[test]
    fn numbers_of_several_sections_and_a_row_longer_than_a_section() {
        watched(|| {
            let text: String = (0..100_000).map(|i| format!("{}.5,{i}\n", i % 1000)).collect();
            let csv = Csv::bytes("long.csv", format!("x,y\n{text}")).labelled("y").unwrap();
            let (x, y) = csv.load().unwrap();
            assert_eq!(y.to_vec::<i64>().unwrap(), (0..100_000).collect::<Vec<_>>());
            assert_eq!(x.as_slice::<f32>().unwrap()[99_999], 999.5);
            let wide = format!("{}\n{}", vec!["1"; 400_000].join(","), vec!["2"; 400_000].join(","));
            let wide = Csv::bytes("wide.csv", wide).without_header().features().unwrap().load().unwrap();
            assert_eq!(wide.dims(), [2, 400_000]);
        });
    }

    #[test]
    fn a_quote_that_is_never_closed_is_named_after_the_rows_before_it() {
        let text = "id\tt\n0\tx0\n1\tx1\n2\tx2\n3\t\"x3\n4\tx4\n5\tx5\n";
        let csv = || Csv::bytes("q.tsv", text).delimiter(b'\t');
        let rows = csv().columns([("t", ColumnType::Text)]).unwrap();
        let seen: Vec<_> = rows.iter().collect();
        assert_eq!(seen.len(), 4);
        let error = seen.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(
            error.starts_with("'q.tsv', line 5, column 2: found a quote that is never closed, "),
            "{error}"
        );
        assert!(error.contains("Csv::without_quoting"), "{error}");
        let texts = csv().without_quoting().columns([("t", ColumnType::Text)]).unwrap().load().unwrap();
        assert_eq!(texts["t"].to_vec::<Vec<u8>>().unwrap()[3], b"\"x3");
        // Quotes that are closed at the end, quotes in the middle of fields, and quotes before blank lines
        // are valid.
        for text in ["a\n\"x\"", "a\n\"x\"\n", "a\n\"x\ny\"\n\n\r\n", "a\nx\"y\n"] {
            let rows = Csv::bytes("q.csv", text).columns([("a", ColumnType::Text)]).unwrap();
            assert_eq!(rows.load().unwrap()["a"].dims(), [1], "{text:?}");
        }
        let pair = Csv::bytes("q.tsv", "id\tt\tn\n1\t\"Cat\t5\n2\tDog\"\t6\n3\tc\t7\n")
            .delimiter(b'\t')
            .without_quoting();
        let read = pair.columns([("t", ColumnType::Text), ("n", ColumnType::Text)]).unwrap().load().unwrap();
        assert_eq!(
            read["t"].to_vec::<Vec<u8>>().unwrap(),
            [b"\"Cat".to_vec(), b"Dog\"".to_vec(), b"c".to_vec()]
        );
        assert_eq!(read["n"].to_vec::<Vec<u8>>().unwrap(), [b"5".to_vec(), b"6".to_vec(), b"7".to_vec()]);
    }

    #[test]
    fn a_broken_row_of_a_later_part_is_named_after_the_rows_before_it() {
        watched(|| {
            let mut text: String = (0..90_000).map(|i| format!("{i},1\n")).collect();
            text += "90000,?\n1,1\n";
            let rows = Csv::bytes("b.csv", text).without_header().features().unwrap();
            let seen: Vec<_> = rows.iter().collect();
            assert_eq!(seen.len(), 90_001);
            let error = seen.last().unwrap().as_ref().unwrap_err().to_string();
            assert!(error.starts_with("'b.csv', line 90001, column 2: found \"?\""), "{error}");
        });
    }
}
