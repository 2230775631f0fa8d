//! A collector of rows of a CSV file, as columns of tensors.

use super::missing::{Filled, Missing};
use crate::{ElementSpec, TensorSpec};
use distribute_tensor::{DType, HostTensor, Leaf, Tree};

/// The type to which the fields of a column are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Numbers, read as `float32`.
    F32,
    /// Integers, read as `int64`.
    I64,
    /// Text, read as `string` with the bytes from the file.
    Text,
}

/// The form in which a row becomes an element.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// One vector of `float32` with all columns.
    Features,
    /// A vector of `float32` with all columns except one, and that one as `int64`. `label` is the index of that
    /// column.
    Labelled { label: usize },
    /// A map of named scalars. Each entry contains the name, the index and the type of a column.
    Columns(Vec<(String, usize, ColumnType)>),
}

impl ColumnType {
    fn dtype(self) -> DType {
        match self {
            ColumnType::F32 => DType::F32,
            ColumnType::I64 => DType::I64,
            ColumnType::Text => DType::String,
        }
    }
}

impl Layout {
    /// Returns the type of the column with the given index; `None` if the column is not read.
    pub(super) fn kind(&self, place: usize) -> Option<ColumnType> {
        match self {
            Layout::Features => Some(ColumnType::F32),
            Layout::Labelled { label } if *label == place => Some(ColumnType::I64),
            Layout::Labelled { .. } => Some(ColumnType::F32),
            Layout::Columns(columns) => {
                columns.iter().find(|(_, at, _)| *at == place).map(|(.., kind)| *kind)
            }
        }
    }

    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between layouts that
    /// result in different elements.
    pub(super) fn identity(&self) -> String {
        match self {
            Layout::Features => "features".into(),
            Layout::Labelled { label } => format!("label {label}"),
            Layout::Columns(columns) => {
                let column = |(name, place, kind): &(String, usize, ColumnType)| {
                    (name.clone(), *place, kind.dtype().name())
                };
                format!("columns {:?}", columns.iter().map(column).collect::<Vec<_>>())
            }
        }
    }

    /// Returns the spec of an element, if rows have `width` columns.
    pub(crate) fn spec(&self, width: usize) -> ElementSpec {
        let vector = |width| Tree::Leaf(TensorSpec::new(DType::F32, [width]));
        let scalar = |dtype| Tree::Leaf(TensorSpec::scalar(dtype));
        match self {
            Layout::Features => vector(width),
            Layout::Labelled { .. } => Tree::Tuple(vec![vector(width.saturating_sub(1)), scalar(DType::I64)]),
            Layout::Columns(columns) => {
                let column =
                    |(name, _, kind): &(String, usize, ColumnType)| (name.clone(), scalar(kind.dtype()));
                Tree::Dict(columns.iter().map(column).collect())
            }
        }
    }
}

/// Several rows whose fields have been parsed, but have not become tensors yet.
pub(crate) struct Block<'a> {
    layout: &'a Layout,
    missing: &'a Missing,
    width: usize,
    rows: usize,
    features: Vec<f32>,
    labels: Vec<i64>,
    columns: Vec<Fields>,
}

/// The buffers of a [`Block`] to which the fast parser appends rows of plain numbers.
pub(crate) struct Numbers<'a> {
    pub(crate) width: usize,
    /// The index of the integer column; `None` if there is none.
    pub(crate) label: Option<usize>,
    pub(crate) rows: &'a mut usize,
    pub(crate) features: &'a mut Vec<f32>,
    pub(crate) labels: &'a mut Vec<i64>,
}

/// The values of one column.
enum Fields {
    F32(Vec<f32>),
    I64(Vec<i64>),
    Text(Vec<Vec<u8>>),
}

/// A field that cannot be converted to its column's type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadField {
    pub(crate) column: usize,
    pub(crate) expected: &'static str,
}

impl<'a> Block<'a> {
    pub(super) fn new(layout: &'a Layout, missing: &'a Missing, width: usize) -> Self {
        let columns = match layout {
            Layout::Features | Layout::Labelled { .. } => Vec::new(),
            Layout::Columns(columns) => columns
                .iter()
                .map(|(_, _, kind)| match kind {
                    ColumnType::F32 => Fields::F32(Vec::new()),
                    ColumnType::I64 => Fields::I64(Vec::new()),
                    ColumnType::Text => Fields::Text(Vec::new()),
                })
                .collect(),
        };
        Self { layout, missing, width, rows: 0, features: Vec::new(), labels: Vec::new(), columns }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the buffers for rows of plain numbers; `None` if columns are named.
    pub(crate) fn numbers(&mut self) -> Option<Numbers<'_>> {
        let label = match self.layout {
            Layout::Features => None,
            Layout::Labelled { label } => Some(*label),
            Layout::Columns(_) => return None,
        };
        let Self { features, labels, rows, .. } = self;
        Some(Numbers { width: self.width, label, rows, features, labels })
    }

    /// Adds a row, which must have the right number of fields. If a field is invalid, nothing is added.
    pub(crate) fn push(&mut self, record: &::csv::ByteRecord) -> Result<(), BadField> {
        let added = self.add(record);
        match added {
            Ok(()) => self.rows += 1,
            Err(_) => self.discard(),
        }
        added
    }

    fn add(&mut self, record: &::csv::ByteRecord) -> Result<(), BadField> {
        let missing = self.missing;
        match self.layout {
            Layout::Features => {
                for (column, field) in record.iter().enumerate() {
                    self.features.push(f32_field(column, field, missing)?);
                }
            }
            Layout::Labelled { label } => {
                for (column, field) in record.iter().enumerate() {
                    if column == *label {
                        self.labels.push(i64_field(column, field, missing)?)
                    } else {
                        self.features.push(f32_field(column, field, missing)?)
                    }
                }
            }
            Layout::Columns(columns) => {
                for ((_, place, _), fields) in columns.iter().zip(&mut self.columns) {
                    let field = record.get(*place).unwrap_or_default();
                    match fields {
                        Fields::F32(fields) => fields.push(f32_field(*place, field, missing)?),
                        Fields::I64(fields) => fields.push(i64_field(*place, field, missing)?),
                        Fields::Text(fields) => fields.push(match missing.replacement(*place, field) {
                            Some(Filled::Text(text)) => text.clone(),
                            _ => field.to_vec(),
                        }),
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes the fields of an incomplete row.
    fn discard(&mut self) {
        let rows = self.rows;
        let width = match self.layout {
            Layout::Labelled { .. } => self.width.saturating_sub(1),
            _ => self.width,
        };
        self.features.truncate(rows * width);
        self.labels.truncate(rows);
        for fields in &mut self.columns {
            match fields {
                Fields::F32(fields) => fields.truncate(rows),
                Fields::I64(fields) => fields.truncate(rows),
                Fields::Text(fields) => fields.truncate(rows),
            }
        }
    }

    /// Converts the rows into one batch.
    pub(crate) fn finish(self) -> distribute_tensor::Result<Tree<Leaf>> {
        let rows = self.rows;
        Ok(match self.layout {
            Layout::Features => matrix(self.features, rows, self.width)?,
            Layout::Labelled { .. } => {
                let features = matrix(self.features, rows, self.width.saturating_sub(1))?;
                Tree::Tuple(vec![features, leaf(HostTensor::vector(self.labels))])
            }
            Layout::Columns(columns) => {
                let vectors = self.columns.into_iter().map(|fields| match fields {
                    Fields::F32(fields) => vector(fields),
                    Fields::I64(fields) => vector(fields),
                    Fields::Text(fields) => vector(fields),
                });
                Tree::Dict(columns.iter().map(|(name, ..)| name.clone()).zip(vectors).collect())
            }
        })
    }
}

fn matrix(elements: Vec<f32>, rows: usize, columns: usize) -> distribute_tensor::Result<Tree<Leaf>> {
    Ok(leaf(HostTensor::new(elements, [rows, columns])?))
}

fn vector<T: distribute_tensor::Element>(elements: Vec<T>) -> Tree<Leaf> {
    leaf(HostTensor::vector(elements))
}

fn leaf(tensor: HostTensor) -> Tree<Leaf> {
    Tree::Leaf(Leaf::Host(tensor))
}

fn f32_field(column: usize, field: &[u8], missing: &Missing) -> Result<f32, BadField> {
    match missing.replacement(column, field) {
        Some(Filled::F32(value)) => Ok(*value),
        _ => parse(field).ok_or(BadField { column, expected: "a number (float32)" }),
    }
}

fn i64_field(column: usize, field: &[u8], missing: &Missing) -> Result<i64, BadField> {
    match missing.replacement(column, field) {
        Some(Filled::I64(value)) => Ok(*value),
        _ => parse(field).ok_or(BadField { column, expected: "an integer (int64)" }),
    }
}

/// Parses a field as a number, ignoring spaces around it. Returns `None` if the field does not contain a valid number.
pub(crate) fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}
