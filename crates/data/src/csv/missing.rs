//! The replacement of fields without a value.

use super::Column;
use super::block::{ColumnType, Layout, parse};
use super::file::Columns;
use crate::{DefaultValue, Error, Result};

/// The user's settings for fields without a value.
#[derive(Clone, Debug, Default)]
pub(super) struct MissingFields {
    pub(super) columns: Vec<(Column, DefaultValue)>,
    /// The default for all columns of a matching type that have no separate default.
    pub(super) all: Option<DefaultValue>,
    /// The texts that mark a field as missing, in addition to an empty field.
    pub(super) texts: Vec<Vec<u8>>,
}

/// A value that replaces a missing field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Filled {
    F32(f32),
    I64(i64),
    Text(Vec<u8>),
}

impl Filled {
    fn identity(&self) -> String {
        match self {
            Filled::F32(value) => format!("{value:?}"),
            Filled::I64(value) => format!("{value}"),
            Filled::Text(text) => format!("{text:?}"),
        }
    }
}

/// The replacements for the columns of a file, and the texts that mark a field as missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Missing {
    columns: Vec<Option<Filled>>,
    texts: Vec<Vec<u8>>,
    /// Whether one of `texts` can be parsed as a number.
    pub(super) numbers: bool,
}

impl MissingFields {
    /// Finds the columns in a file, and assigns a replacement to each that has a default. A separate default that does
    /// not have its column's type is an error; the default for all columns is ignored for columns of other types.
    pub(super) fn find(&self, columns: &Columns, layout: &Layout) -> Result<Missing> {
        let mut found = Vec::new();
        for place in 0..columns.count {
            let kind = layout.kind(place);
            found.push(kind.zip(self.all.as_ref()).and_then(|(kind, value)| filled(kind, value).ok()));
        }
        for (column, value) in &self.columns {
            let place = columns.find(column)?;
            let Some(kind) = layout.kind(place) else { continue };
            let filled = filled(kind, value).map_err(|found| Error::Parameter {
                operation: "Csv::default",
                parameter: "the value",
                found: format!("for column {column}: {found}"),
                expected: "of the column's type",
            })?;
            if let Some(slot) = found.get_mut(place) {
                *slot = Some(filled);
            }
        }
        let numbers = self.texts.iter().any(|text| parse::<f32>(text).is_some());
        if found.iter().all(Option::is_none) {
            found.clear();
        }
        Ok(Missing { columns: found, texts: self.texts.clone(), numbers })
    }
}

fn filled(kind: ColumnType, value: &DefaultValue) -> Result<Filled, String> {
    Ok(match kind {
        ColumnType::F32 => Filled::F32(value.float()? as f32),
        ColumnType::I64 => Filled::I64(value.int()?),
        ColumnType::Text => Filled::Text(value.text()?.to_vec()),
    })
}

impl Missing {
    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between settings that
    /// result in different elements.
    pub(super) fn identity(&self) -> String {
        let filled = self.columns.iter().enumerate();
        let filled: Vec<_> =
            filled.filter_map(|(place, filled)| Some((place, filled.as_ref()?.identity()))).collect();
        match filled.as_slice() {
            // Without a default, a field is never missing.
            [] => "no defaults".into(),
            filled => format!("defaults {filled:?} for {:?}", self.texts),
        }
    }

    /// Returns the replacement for a field; `None` if the field is not missing or its column has no default.
    pub(super) fn replacement(&self, place: usize, field: &[u8]) -> Option<&Filled> {
        let filled = self.columns.get(place)?.as_ref()?;
        let field = field.trim_ascii();
        (field.is_empty() || self.texts.iter().any(|text| text.trim_ascii() == field)).then_some(filled)
    }
}

#[cfg(test)]
mod tests {
    use crate::csv::{ColumnType, Csv};

    #[test]
    fn empty_fields_have_the_default_of_their_column_or_of_all() {
        let text = "x,y,n,t\r\n1,,3,a\r\n , NA ,,\r\n2,\"\",-9,\"\"\r\n";
        let csv = || Csv::bytes("m.csv", text).default("y", 0.5).default("n", -1);
        let columns =
            [("x", ColumnType::F32), ("y", ColumnType::F32), ("n", ColumnType::I64), ("t", ColumnType::Text)];
        let read = |csv: Csv| csv.columns(columns).unwrap().load();
        let found = read(csv().default("x", 7).default("t", "none").missing("NA").missing("-9")).unwrap();
        assert_eq!(found["x"].to_vec::<f32>().unwrap(), [1., 7., 2.]);
        assert_eq!(found["y"].to_vec::<f32>().unwrap(), [0.5, 0.5, 0.5]);
        assert_eq!(found["n"].to_vec::<i64>().unwrap(), [3, -1, -1]);
        assert_eq!(
            found["t"].to_vec::<Vec<u8>>().unwrap(),
            [b"a".to_vec(), b"none".to_vec(), b"none".to_vec()]
        );
        // A default of all columns applies to those of a matching type. Text without a default stays as it
        // is.
        let all = read(csv().default_of_all(0.25).missing("NA")).unwrap();
        assert_eq!(all["x"].to_vec::<f32>().unwrap(), [1., 0.25, 2.]);
        assert_eq!(all["t"].to_vec::<Vec<u8>>().unwrap(), [b"a".to_vec(), Vec::new(), Vec::new()]);
        let error = read(csv().missing("NA")).unwrap_err().to_string();
        assert_eq!(error, "'m.csv', line 3, column 1: found \" \", expected a number (float32) for 'x'");
    }

    #[test]
    fn numbers_may_stand_for_missing_ones_and_many_rows_have_some() {
        let text: String =
            (0..50_000).map(|i| if i % 7 == 3 { "nan,\n".into() } else { format!("{i},{i}\n") }).collect();
        for threads in [1, 3] {
            let csv = Csv::bytes("m.csv", text.clone()).without_header().threads(threads).default_of_all(-1);
            let (x, y) = csv.missing("nan").labelled(1).unwrap().load().unwrap();
            let expected: Vec<i64> = (0..50_000).map(|i| if i % 7 == 3 { -1 } else { i }).collect();
            assert_eq!(y.to_vec::<i64>().unwrap(), expected);
            assert_eq!(x.to_vec::<f32>().unwrap(), expected.iter().map(|i| *i as f32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_default_of_another_type_or_column_is_refused_when_the_dataset_is_made() {
        let csv = || Csv::bytes("m.csv", "x,y\n1,2\n");
        let error = csv().default("y", 0.5).labelled("y").unwrap_err().to_string();
        assert!(error.contains("for column y: its default, 0.5, is not a value of int64"), "{error}");
        assert!(csv().default("z", 1).features().unwrap_err().to_string().contains("no column 'z'"));
        assert!(csv().default("x", "none").features().is_err());
        // Columns that are not read need no default.
        assert!(csv().default("x", "none").columns([("y", ColumnType::I64)]).is_ok());
    }
}
