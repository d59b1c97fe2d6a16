//! Changes to header fields: added, then set, then removed.

use weir_expr::Source;
use weir_plugin::Invalid;
use weir_wire::name::{FieldName, Known};

use crate::fields::{FieldTemplate, FieldsConf, editable};

/// The changes, ready for requests.
#[derive(Debug, Default)]
pub(super) struct Edits {
    add: Box<[FieldTemplate]>,
    set: Box<[FieldTemplate]>,
    remove: Box<[FieldName]>,
}

/// What is done to one field.
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
    pub(super) fn new(add: Vec<FieldTemplate>, set: Vec<FieldTemplate>, remove: Vec<FieldName>) -> Self {
        Self { add: add.into(), set: set.into(), remove: remove.into() }
    }

    /// Only fields to set: the old form of the configuration.
    pub(super) fn only_set(path: &str, fields: &FieldsConf, captures: bool) -> Result<Self, Invalid> {
        Ok(Self::new(Vec::new(), fields.compile(path, captures)?, Vec::new()))
    }

    /// Whether a field is touched.
    pub(super) fn touches(&self, id: Known) -> bool {
        self.names().any(|name| name.id() == id)
    }

    /// The changes to all other fields.
    pub(super) fn without(self, id: Known) -> Self {
        let others = |fields: Box<[FieldTemplate]>| fields.into_iter().filter(|field| field.name.id() != id).collect();
        Self {
            add: others(self.add),
            set: others(self.set),
            remove: self.remove.into_iter().filter(|name| name.id() != id).collect(),
        }
    }

    /// All names that are touched.
    pub(super) fn names(&self) -> impl Iterator<Item = &FieldName> {
        self.add.iter().chain(&self.set).map(|field| &field.name).chain(&self.remove)
    }

    /// Applies all changes, in order. Values are rendered into `room`; `on` is whatever has the fields, of which `source`
    /// gives the variables and `apply` changes one field. A value that comes out empty adds nothing, and removes what it
    /// would have replaced, as nginx has it.
    pub(super) fn apply<T>(
        &self,
        on: &mut T,
        captures: &[&[u8]],
        room: &mut Vec<u8>,
        source: impl Fn(&T) -> &dyn Source,
        mut apply: impl FnMut(&mut T, &FieldName, Edit<'_>),
    ) {
        for (fields, adds) in [(&self.add, true), (&self.set, false)] {
            for field in fields {
                room.clear();
                let value = match field.value.literal() {
                    Some(literal) => literal,
                    None => {
                        field.value.render_with_captures(source(on), captures, room);
                        room.as_slice()
                    }
                };
                match (adds, value.is_empty()) {
                    (true, true) => {}
                    (true, false) => apply(on, &field.name, Edit::Add(value)),
                    (false, true) => apply(on, &field.name, Edit::Remove),
                    (false, false) => apply(on, &field.name, Edit::Set(value)),
                }
            }
        }
        for name in &self.remove {
            apply(on, name, Edit::Remove);
        }
    }
}

/// Compiles the names of `remove`.
pub(super) fn removed(path: &str, names: &[String]) -> Result<Vec<FieldName>, Invalid> {
    names.iter().enumerate().map(|(at, name)| editable(&format!("{path}[{at}]"), name)).collect()
}
