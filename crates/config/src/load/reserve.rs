//! Parts of an item that are kept in case that the item is left out.

use crate::node::Node;

/// Fields that keep the place of an item, which may turn out to be invalid.
pub(crate) struct Reserve {
    pub(super) fields: Node,
    /// True if one of the fields occurs twice.
    pub(super) ambiguous: bool,
}
