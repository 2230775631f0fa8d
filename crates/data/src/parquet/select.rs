//! The selection of the columns that are read, and their names.

use crate::csv::Column;
use crate::{Error, Location, Result};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Fields};
use std::collections::{BTreeMap, BTreeSet};

/// The columns that are read from a file.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    /// The index of the first leaf of each column, by name.
    columns: BTreeMap<String, usize>,
    /// The indices of all leaves that are read.
    leaves: BTreeSet<usize>,
    schema: Fields,
}

/// A column of a batch of rows.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) array: ArrayRef,
    /// The structures that contain the column. A row that is null in one of them has no value.
    within: Vec<ArrayRef>,
}

impl Found {
    /// Returns whether the given row has a value.
    pub(super) fn is_there(&self, row: usize) -> bool {
        self.array.is_valid(row) && self.within.iter().all(|structure| structure.is_valid(row))
    }

    /// Returns whether every row has a value.
    pub(super) fn is_complete(&self) -> bool {
        self.array.null_count() == 0 && self.within.iter().all(|structure| structure.null_count() == 0)
    }
}

/// A list of columns of a file, each with its name, its first leaf and its type.
type Leaves<'a> = Vec<(String, usize, &'a DataType)>;

impl Selected {
    /// Finds the requested columns in a file's schema. `None` means all columns.
    pub(super) fn find(location: &Location, schema: &Fields, wanted: Option<&[Column]>) -> Result<Self> {
        let roots = roots(schema);
        let mut found: Leaves<'_> = Vec::new();
        match wanted {
            None => {
                for (field, first) in &roots {
                    flatten(field.name().clone(), field.data_type(), *first, &mut found);
                }
            }
            Some(wanted) => {
                for column in wanted {
                    find(location, &roots, column, &mut found)?;
                }
            }
        }
        let (mut columns, mut leaves) = (BTreeMap::new(), BTreeSet::new());
        for (name, first, data_type) in found {
            leaves.extend(first..first + count(data_type));
            if let Some(other) = columns.insert(name.clone(), first)
                && other != first
            {
                return Err(twice(location, &roots, name, &[first, other]));
            }
        }
        Ok(Self { columns, leaves, schema: schema.clone() })
    }

    /// Returns the indices of all leaves that are read.
    pub(super) fn leaves(&self) -> impl Iterator<Item = usize> + '_ {
        self.leaves.iter().copied()
    }

    /// Checks that the column `name` is among those that are read.
    pub(super) fn check(&self, location: &Location, name: &str) -> Result<()> {
        if self.columns.contains_key(name) {
            return Ok(());
        }
        let known = self.columns.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(Error::NoColumn { path: location.to_string(), column: format!("'{name}'"), known })
    }

    /// Returns the selected columns of a batch of rows.
    pub(super) fn of(&self, batch: &RecordBatch) -> Vec<Found> {
        let mut arrays = BTreeMap::new();
        self.walk(&self.schema, batch.columns(), 0, &[], &mut arrays);
        let column = |(name, first): (&String, &usize)| {
            let (array, within) = arrays.get(first).cloned()?;
            Some(Found { name: name.clone(), array, within })
        };
        self.columns.iter().filter_map(column).collect()
    }

    /// Adds the arrays of the selected leaves to `arrays`, keyed by the index of their first leaf, each with the
    /// structures that contain it, outermost first. `columns` contains only those `fields` that have a selected leaf.
    /// `first` is the index of the first leaf, and `within` are the enclosing structures.
    fn walk(
        &self,
        fields: &Fields,
        columns: &[ArrayRef],
        first: usize,
        within: &[ArrayRef],
        arrays: &mut BTreeMap<usize, (ArrayRef, Vec<ArrayRef>)>,
    ) {
        let (mut columns, mut first) = (columns.iter(), first);
        for field in fields {
            let end = first + count(field.data_type());
            if self.leaves.range(first..end).next().is_some()
                && let Some(column) = columns.next()
            {
                match field.data_type() {
                    DataType::Struct(fields) => {
                        let within = [within, std::slice::from_ref(column)].concat();
                        self.walk(fields, column.as_struct().columns(), first, &within, arrays);
                    }
                    _ => drop(arrays.insert(first, (column.clone(), within.to_vec()))),
                }
            }
            first = end;
        }
    }
}

/// Returns the top-level columns of a file, with the index of the first leaf of each.
fn roots(schema: &Fields) -> Vec<(&Field, usize)> {
    let mut first = 0;
    let root = |field| {
        let root = (field, first);
        first += count(Field::data_type(field));
        root
    };
    schema.iter().map(|field| &**field).map(root).collect()
}

/// Returns the number of leaves of a column with the given type.
fn count(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => fields.iter().map(|field| count(field.data_type())).sum(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => count(item.data_type()),
        _ => 1,
    }
}

/// Adds a column to `found`. A structure gives a column for each of its fields, such as `image.bytes`.
fn flatten<'a>(name: String, data_type: &'a DataType, first: usize, found: &mut Leaves<'a>) {
    match data_type {
        DataType::Struct(fields) => {
            let mut first = first;
            for field in fields {
                flatten(format!("{name}.{}", field.name()), field.data_type(), first, found);
                first += count(field.data_type());
            }
        }
        _ => found.push((name, first, data_type)),
    }
}

/// Finds one requested column, and adds it to `found`.
fn find<'a>(
    location: &Location,
    roots: &[(&'a Field, usize)],
    wanted: &Column,
    found: &mut Leaves<'a>,
) -> Result<()> {
    let missing = |column| {
        let mut known = Vec::new();
        roots
            .iter()
            .for_each(|(field, first)| flatten(field.name().clone(), field.data_type(), *first, &mut known));
        let known: Vec<String> = known.into_iter().map(|(name, ..)| name).collect();
        Error::NoColumn { path: location.to_string(), column, known: known.join(", ") }
    };
    match wanted {
        Column::At(place) => {
            let (field, first) = roots.get(*place).ok_or_else(|| missing(place.to_string()))?;
            flatten(place.to_string(), field.data_type(), *first, found);
        }
        Column::Named(name) => {
            // A column of exactly this name comes before a field of a structure.
            let mut paths: Vec<_> = roots.iter().copied().filter(|(field, _)| field.name() == name).collect();
            if paths.is_empty() {
                named(roots, name, &mut paths);
            }
            match paths.as_slice() {
                [(field, first)] => flatten(name.clone(), field.data_type(), *first, found),
                [] => return Err(missing(format!("'{name}'"))),
                several => {
                    let leaves: Vec<_> = several.iter().map(|(_, first)| *first).collect();
                    return Err(twice(location, roots, name.clone(), &leaves));
                }
            }
        }
    }
    Ok(())
}

/// Finds all fields to which a name may refer: `image.bytes` may be a column, or a field of a structure.
fn named<'a>(fields: &[(&'a Field, usize)], name: &str, paths: &mut Vec<(&'a Field, usize)>) {
    for (field, first) in fields {
        match (name.strip_prefix(field.name().as_str()), field.data_type()) {
            (Some(""), _) => paths.push((*field, *first)),
            (Some(rest), DataType::Struct(children)) if rest.starts_with('.') => {
                let children: Vec<_> =
                    roots(children).into_iter().map(|(child, at)| (child, first + at)).collect();
                named(&children, rest.get(1..).unwrap_or_default(), paths);
            }
            _ => {}
        }
    }
}

/// Creates the error for two columns with the same name. `leaves` are their first leaves.
fn twice(location: &Location, roots: &[(&Field, usize)], name: String, leaves: &[usize]) -> Error {
    let at = |leaf: &usize| roots.partition_point(|(_, first)| first <= leaf);
    if let [first, rest @ ..] = leaves
        && rest.iter().all(|leaf| at(leaf) == at(first))
    {
        let what = "several fields of its structure have this name, and cannot be distinguished: select \
                    others by `Parquet::columns`, or write the file with a name for each field";
        return Error::Column { path: location.to_string(), column: name, what: what.to_string() };
    }
    let root = name.split('.').next().unwrap_or_default();
    let places =
        roots.iter().enumerate().filter(|(_, (field, _))| *field.name() == name || field.name() == root);
    let places: Vec<String> = places.map(|(place, _)| place.to_string()).collect();
    let what = format!(
        "several columns have this name: select them by position, {}: `Parquet::columns([0, 1])`",
        places.join(" and ")
    );
    Error::Column { path: location.to_string(), column: name, what }
}
