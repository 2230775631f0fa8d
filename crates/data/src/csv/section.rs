//! A section of a CSV file, and its parser.

use super::block::Block;
use super::file::{CsvFormat, failure, line, reader};
use super::plain::{self, Stop};
use crate::broken::Broken;
use crate::chunk::Chunk;
use crate::file_source::ParsedSection;
use crate::{Error, Location, Result};
use std::io::Read;
use std::sync::Arc;

/// A section of complete rows of a file. Any thread can parse it.
pub(super) struct Section {
    pub(super) format: Arc<CsvFormat>,
    pub(super) file: Location,
    /// The offset of the section in the decompressed text, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) broken: Broken,
}

impl Section {
    /// Parses the intact rows, up to the first broken one that may not be skipped.
    pub(super) fn parse_all(&self) -> ParsedSection {
        let mut block = Block::new(&self.format.layout, &self.format.missing, self.format.columns.count);
        let failed = self.parse(&mut block).err();
        match (block.rows(), failed) {
            (0, failed) => ParsedSection { chunk: None, failed },
            (len, failed) => match block.finish() {
                Ok(tree) => ParsedSection { chunk: Some(Chunk::rows(tree, len)), failed },
                Err(error) => ParsedSection { chunk: None, failed: Some(error.into()) },
            },
        }
    }

    fn parse(&self, block: &mut Block<'_>) -> Result<()> {
        let first = self.offset == 0;
        let skip_header = first && self.format.header;
        let mut start = 0;
        if plain::is_plain(&self.bytes, self.format.dialect) && !self.format.missing.numbers {
            match plain::rows(&self.bytes, self.format.dialect.delimiter, skip_header, first, block) {
                Stop::End => return Ok(()),
                Stop::At(place) => start = place,
            }
        }
        // If the text is not plain, or a row is unexpected, the general parser continues and finds the error.
        let rest = self.bytes.get(start..).unwrap_or_default();
        // A byte order mark can only be at the start of the file.
        let ahead: &[u8] = if first && start == 0 { b"" } else { b"\n" };
        let mut rows = reader(ahead.chain(rest), self.format.dialect, skip_header && start == 0);
        let mut row = ::csv::ByteRecord::new();
        while rows.read_byte_record(&mut row).map_err(|error| failure(&self.file, error))? {
            let within = row.position().map_or(0, ::csv::Position::byte).saturating_sub(ahead.len() as u64);
            self.push(&row, self.offset + start as u64 + within, block)?;
        }
        Ok(())
    }

    /// Adds a row to the block, or skips it if it is broken and skipping is allowed. `at` is the offset of the
    /// row in the text.
    fn push(&self, row: &::csv::ByteRecord, at: u64, block: &mut Block<'_>) -> Result<()> {
        let broken = |column: usize, found: String, expected: String| match line(&self.file, at) {
            Ok(line) => Error::Csv { path: self.file.to_string(), line, column: column + 1, found, expected },
            Err(error) => error,
        };
        let (width, found) = (self.format.columns.count, row.len());
        if found != width {
            return self.broken.skip_with(|| broken(found.min(width), columns(found), columns(width)));
        }
        block.push(row).or_else(|bad| {
            self.broken.skip_with(|| {
                let field = quote(row.get(bad.column).unwrap_or_default());
                let name = self.format.columns.describe(bad.column);
                broken(bad.column, field, format!("{}{name}", bad.expected))
            })
        })
    }
}

fn columns(n: usize) -> String {
    format!("{n} column{}", if n == 1 { "" } else { "s" })
}

/// Returns a field in quotes for an error message, truncated if it is long.
fn quote(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::csv::{Column, ColumnType, Csv};
    use crate::{Cardinality, Error, Files, Location};
    use distribute_tensor::HostTensor;
    use std::io::Write;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn f32s(tensor: &HostTensor) -> Vec<f32> {
        tensor.as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn features_with_and_without_header() {
        let with = Csv::bytes("a.csv", "x,y\n1, 2.5\n-3,4e1\n").features().unwrap();
        let rows: Vec<_> = with.iter().map(|row| f32s(&row.unwrap())).collect();
        assert_eq!(rows, [[1., 2.5], [-3., 40.]]);
        assert_eq!(with.cardinality(), Cardinality::Unknown);
        let without = Csv::bytes("a.csv", "1,2\n3,4").without_header().features().unwrap();
        assert_eq!(f32s(&without.load().unwrap()), [1., 2., 3., 4.]);
        assert_eq!(without.explain(), "CSV, 2 columns, from 'a.csv' (length unknown)\n");
        assert_eq!(Csv::bytes("a.csv", "x,y\n").features().unwrap().iter().count(), 0);
        assert_eq!(Csv::bytes("a.csv", "").features().unwrap().iter().count(), 0);
    }

    #[test]
    fn many_rows_come_in_order_however_they_are_asked_for() {
        let text: String = (0..3000).map(|i| format!("{i},{}\n", i % 7)).collect();
        let data = Csv::bytes("long.csv", text).without_header().labelled(1).unwrap();
        let alone: Vec<_> = data.iter().map(|e| e.unwrap()).map(|(x, y)| (f32s(&x)[0] as i64, y)).collect();
        assert_eq!(alone, (0..3000).map(|i| (i, i % 7)).collect::<Vec<_>>());
        let (x, y) = data.batch(1100).iter().nth(1).unwrap().unwrap();
        assert_eq!((x.dims(), y.dims()), (&[1100, 1][..], &[1100][..]));
        assert_eq!(f32s(&x)[..2], [1100., 1101.]);
        let mut shuffled: Vec<_> =
            data.shuffle(500, 1).iter().map(|e| f32s(&e.unwrap().0)[0] as i64).collect();
        shuffled.sort_unstable();
        assert_eq!(shuffled, (0..3000).collect::<Vec<_>>());
    }

    #[test]
    fn files_of_one_header_are_one_dataset() {
        let file = |name: &str, text: &'static str| Location::bytes(name, text);
        let read = |files: [Location; 3]| Csv::files(files).features().unwrap().load();
        let (a, b) = (file("a.csv", "x,y\n1,2\n"), file("b.csv", "x,y\n3,4\n"));
        let all = read([a.clone(), file("empty.csv", ""), b.clone()]).unwrap();
        assert_eq!(f32s(&all), [1., 2., 3., 4.]);
        let error = read([a, b, file("c.csv", "x,z\n5,6\n")]).unwrap_err().to_string();
        assert_eq!(error, "'c.csv', line 1, column 2: found \"z\", expected \"y\", as in 'a.csv'");
        assert!(matches!(Csv::files(Files::default()).features(), Err(Error::Empty { .. })));
        // Names in Latin-1, whose text would be the same.
        let latin = [("o.csv", b"\xf6\n1\n"), ("u.csv", b"\xfc\n2\n")];
        let latin = latin.map(|(name, bytes)| Location::bytes(name, bytes));
        let error = Csv::files(latin).features().unwrap().load().unwrap_err().to_string();
        assert_eq!(error, r#"'u.csv', line 1, column 1: found "\xfc", expected "\xf6", as in 'o.csv'"#);
    }

    #[test]
    fn files_without_a_byte_tell_no_columns_and_names_that_come_twice_are_refused() {
        let file = |name: &str, text: &'static str| Location::bytes(name, text);
        let spark = [file("part-0.csv", ""), file("part-1.csv", "x,y\n1,2\n"), file("part-2.csv", "")];
        let (x, y) = Csv::files(spark).labelled("y").unwrap().load().unwrap();
        assert_eq!((f32s(&x), y.to_vec::<i64>().unwrap()), (vec![1.], vec![2]));
        assert_eq!(Csv::files([file("a", ""), file("b", "")]).features().unwrap().iter().count(), 0);

        let twice = || Csv::bytes("t.csv", "x,x,y\n1,2,3\n");
        let error = twice().labelled("x").unwrap_err().to_string();
        let expected = "'t.csv', line 1, column 2: found \"x\" once more, expected another name than that \
                        of column 1; use the column's position instead";
        assert_eq!(error, expected);
        assert!(twice().columns([("x", ColumnType::F32)]).is_err());
        let both = twice().columns([(0, ColumnType::I64), (1, ColumnType::I64)]).unwrap().load().unwrap();
        assert_eq!(
            (both["0"].to_vec::<i64>().unwrap(), both["1"].to_vec::<i64>().unwrap()),
            (vec![1], vec![2])
        );
        assert_eq!(twice().labelled("y").unwrap().load().unwrap().1.to_vec::<i64>().unwrap(), [3]);
    }

    #[test]
    fn gzip_is_seen_whatever_the_name_and_several_members_are_one_file() {
        let mut bytes = gzip("x,l\n1,5\n");
        bytes.extend(gzip("2,6\n"));
        let (x, labels) = Csv::bytes("plain.csv", bytes).labelled("l").unwrap().load().unwrap();
        assert_eq!(f32s(&x), [1., 2.]);
        assert_eq!(labels.as_slice::<i64>().unwrap(), [5, 6]);

        let path = std::env::temp_dir().join(format!("distribute-data-{}.csv", std::process::id()));
        std::fs::write(&path, gzip("x\n3\n")).unwrap();
        assert_eq!(f32s(&Csv::file(&path).features().unwrap().load().unwrap()), [3.]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn typed_columns_by_name_and_place() {
        let data =
            Csv::bytes("p.tsv", "name\tsize\tn\n\"a \"\"b\"\"\tc\"\t1.5\t7\nd\t2\t8\n").delimiter(b'\t');
        let by_name = data.clone().columns([("n", ColumnType::I64), ("name", ColumnType::Text)]).unwrap();
        let row = by_name.iter().next().unwrap().unwrap();
        assert_eq!(row.len(), 2);
        assert_eq!(row["n"].as_slice::<i64>().unwrap(), [7]);
        assert_eq!(row["name"].as_slice::<Vec<u8>>().unwrap(), [b"a \"b\"\tc".to_vec()]);
        let all = data.columns([(1, ColumnType::F32)]).unwrap().load().unwrap();
        assert_eq!(f32s(&all["1"]), [1.5, 2.]);
    }

    #[test]
    fn columns_of_one_name_are_refused() {
        let csv = || Csv::bytes("a.csv", "x,0\n1,2\n");
        let error = csv().columns([("x", ColumnType::F32), ("x", ColumnType::I64)]).unwrap_err().to_string();
        assert_eq!(
            error,
            "Csv::columns: the name of a column is 'x', but must be a name that no other column has"
        );
        // The name of the first column would be that of the second.
        let both = [Column::At(0), Column::from("0")].map(|column| (column, ColumnType::I64));
        assert!(matches!(csv().columns(both.clone()), Err(Error::Parameter { .. })));
        assert!(csv().columns([both[0].clone(), (Column::from("x"), ColumnType::F32)]).is_ok());
    }

    #[test]
    fn a_broken_field_names_file_line_and_column_after_the_rows_before_it() {
        let text = "x,y\n1,2\n\n3,4\n\n\n5,oops\n6,7\n";
        let mut iter = Csv::bytes("b.csv", text).features().unwrap().batch(2).iter();
        assert_eq!(f32s(&iter.next().unwrap().unwrap()), [1., 2., 3., 4.]);
        let error = iter.next().unwrap().unwrap_err();
        let expected = "'b.csv', line 7, column 2: found \"oops\", expected a number (float32) for 'y'";
        assert_eq!(error.to_string(), expected);
        assert!(iter.next().is_none());

        let single = Csv::bytes("b.csv", text).features().unwrap();
        assert_eq!(single.iter().filter(Result::is_ok).count(), 2);
        let error =
            Csv::bytes("b.csv", "1,2\r\n3,4.5\r\n").without_header().labelled(1).unwrap().load().unwrap_err();
        let expected = "'b.csv', line 2, column 2: found \"4.5\", expected an integer (int64)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn lines_are_counted_as_editors_do() {
        let line =
            |text: &'static str| match Csv::bytes("l.csv", text).features().unwrap().load().unwrap_err() {
                Error::Csv { line, .. } => line,
                other => panic!("{other}"),
            };
        assert_eq!(line("x\r\n1\r\n?\r\n"), 3);
        assert_eq!(line("x\r\n\r\n\r\n1\r\n\r\n?"), 6);
        assert_eq!(line("x\r1\r?\r"), 3);
        assert_eq!(line("\n\nx\n?\n"), 4);
        assert_eq!(line("\"a\nb\"\n1\n?\n"), 4);
        assert_eq!(line("x\n\"1\n2\"\n"), 2);
    }

    #[test]
    fn a_row_of_another_width_names_line_and_column() {
        let data = |text: &'static str| Csv::bytes("w.csv", text).without_header().features().unwrap();
        let error = data("1,2,3\n4,5\n").load().unwrap_err();
        assert_eq!(error.to_string(), "'w.csv', line 2, column 3: found 2 columns, expected 3 columns");
        let error = data("1\n2\n3,4\n").load().unwrap_err();
        assert_eq!(error.to_string(), "'w.csv', line 3, column 2: found 2 columns, expected 1 column");
        let long: &'static str = "1\n2222222222222222222222222222222222222222222222222222222222x\n";
        let error = data(long).load().unwrap_err();
        assert!(matches!(&error, Error::Csv { found, .. } if found.ends_with("2\"…")), "{error}");
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error_where_numbers_are_needed() {
        let error = Csv::bytes("n.csv", b"x\n\xff\xfe\n").features().unwrap().load().unwrap_err();
        assert!(matches!(error, Error::Csv { line: 2, column: 1, .. }), "{error}");
        let text = Csv::bytes("n.csv", b"x\n\xff\xfe\n").columns([("x", ColumnType::Text)]).unwrap();
        assert_eq!(text.load().unwrap()["x"].as_slice::<Vec<u8>>().unwrap(), [b"\xff\xfe".to_vec()]);
    }

    #[test]
    fn missing_files_columns_and_broken_gzip_are_typed_errors() {
        let error = Csv::file("/nonexistent/digits.csv").features().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path == "/nonexistent/digits.csv"), "{error}");

        let data = || Csv::bytes("c.csv", "x,y\n1,2\n");
        let error = data().labelled("z").unwrap_err();
        assert_eq!(error.to_string(), "'c.csv' has no column 'z'; it has x, y");
        let error = data().labelled(2).unwrap_err();
        assert_eq!(error.to_string(), "'c.csv' has no column 2; it has columns 0 to 1");
        let error = data().without_header().labelled("x").unwrap_err();
        assert!(error.to_string().ends_with("use the column's position instead"), "{error}");
        assert!(matches!(Csv::bytes("c.csv", "").labelled(0), Err(Error::NoColumn { .. })));

        let text: String = (0..5000).map(|i| format!("{}\n", i * 7919 % 5003)).collect();
        let mut cut = gzip(&text);
        cut.truncate(cut.len() / 2);
        let error = Csv::bytes("cut.gz", cut).without_header().features().unwrap().load().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path == "cut.gz"), "{error}");
    }
}
