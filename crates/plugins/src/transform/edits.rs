//! Changes to header fields: added, then set, then removed.

use weir_expr::Source;
use weir_plugin::Invalid;
use weir_wire::name::{FieldName, Known};

use crate::fields::{FieldTemplate, editable};

/// The changes, ready for requests.
#[derive(Debug, Default)]
pub(super) struct Edits {
    values: Box<[(FieldTemplate, Action)]>,
    remove: Box<[FieldName]>,
}

/// A change to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Add,
    Set,
}

/// A change to one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit<'a> {
    /// One more of this name.
    Add(&'a [u8]),
    /// This one instead of all of this name.
    Set(&'a [u8]),
    /// None of this name.
    Remove,
}

impl Edits {
    /// Makes the changes of one value each, and of a list of values for each field to set.
    pub(super) fn new(add: Vec<FieldTemplate>, set: Vec<Vec<FieldTemplate>>, remove: Vec<FieldName>) -> Self {
        let added = add.into_iter().map(|field| (field, Action::Add));
        // The first value of a list replaces what was there, and the others join it.
        let of_list = |values: Vec<FieldTemplate>| {
            values.into_iter().enumerate().map(|(at, field)| (field, if at == 0 { Action::Set } else { Action::Add }))
        };
        let values = added.chain(set.into_iter().flat_map(of_list)).collect();
        Self { values, remove: remove.into() }
    }

    /// True if a field is touched.
    pub(super) fn touches(&self, id: Known) -> bool {
        self.names().any(|name| name.id() == id)
    }

    /// The changes to all other fields.
    pub(super) fn without(self, id: Known) -> Self {
        Self {
            values: self.values.into_iter().filter(|(field, _)| field.name.id() != id).collect(),
            remove: self.remove.into_iter().filter(|name| name.id() != id).collect(),
        }
    }

    /// All names that are touched.
    pub(super) fn names(&self) -> impl Iterator<Item = &FieldName> {
        self.values.iter().map(|(field, _)| &field.name).chain(&self.remove)
    }

    /// Applies all changes, in order. Values are rendered into `room`; `on` is whatever has the fields, of which
    /// `source` gives the variables and `apply` changes one field. A value that comes out empty adds nothing, and
    /// removes what it would have replaced, as nginx has it.
    pub(super) fn apply<T>(
        &self,
        on: &mut T,
        captures: &[&[u8]],
        room: &mut Vec<u8>,
        source: impl Fn(&T) -> &dyn Source,
        mut apply: impl FnMut(&mut T, &FieldName, Edit<'_>),
    ) {
        for (field, action) in &self.values {
            room.clear();
            let value = match field.value.literal() {
                Some(literal) => literal,
                None => {
                    field.value.render_with_captures(source(on), captures, room);
                    room.as_slice()
                }
            };
            match (action, value.is_empty()) {
                (Action::Add, true) => {}
                (Action::Add, false) => apply(on, &field.name, Edit::Add(value)),
                (Action::Set, true) => apply(on, &field.name, Edit::Remove),
                (Action::Set, false) => apply(on, &field.name, Edit::Set(value)),
            }
        }
        for name in &self.remove {
            apply(on, name, Edit::Remove);
        }
    }
}

/// Fields to set with one value each.
pub(super) fn single(fields: Vec<FieldTemplate>) -> Vec<Vec<FieldTemplate>> {
    fields.into_iter().map(|field| vec![field]).collect()
}

/// Compiles the names of `remove`.
pub(super) fn removed(path: &str, names: &[String]) -> Result<Vec<FieldName>, Invalid> {
    names.iter().enumerate().map(|(at, name)| editable(&format!("{path}[{at}]"), name)).collect()
}
