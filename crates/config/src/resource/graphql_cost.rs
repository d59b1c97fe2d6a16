//! Weights of fields of GraphQL, by which `graphql-limit-count` counts operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::Id;
use super::head::resource;

resource! {
    /// The weight of one place in the schema of a service that speaks GraphQL. The cost of a field is that of everything
    /// selected below it, times `mul_value`, and `add_value`.
    pub struct GraphqlCostDecoration {
        /// The service, which stands in the path of the resource as well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service_id: Option<Id>,
        /// The place: a type (`Product`: every field that has a product), a field of a type (`Product.reviews`), or the fields
        /// that lead to one (`Query.products.nodes.reviews`). Of several that fit one field the longest holds.
        #[schemars(
            length(max = 4096),
            regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"),
            extend("x-expected" = "a type and names of fields, such as Product or Query.products")
        )]
        pub field_path: String,
        /// The cost of the field itself.
        #[serde(default = "one")]
        #[schemars(range(min = 0))]
        pub add_value: f64,
        /// Arguments of the field whose numbers are added to `add_value`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(inner(length(min = 1)))]
        pub add_arguments: Vec<String>,
        /// Factor of the cost of everything selected below the field.
        #[serde(default = "one")]
        #[schemars(range(min = 0))]
        pub mul_value: f64,
        /// Arguments of the field by whose numbers `mul_value` is multiplied.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(inner(length(min = 1)))]
        pub mul_arguments: Vec<String>,
    }
}

fn one() -> f64 {
    1.0
}

/// The weights of a service, found by their places.
#[derive(Clone, Debug, Default)]
pub struct CostDecorations(Option<Arc<Places>>);

#[derive(Debug)]
struct Places {
    all: Vec<GraphqlCostDecoration>,
    root: CostPlace,
}

/// A place in a schema, and those below it by the names of types and fields.
#[derive(Debug, Default)]
pub struct CostPlace {
    below: BTreeMap<Box<str>, Self>,
    /// Position of the weight of this place, and the number of names that lead here.
    weight: Option<usize>,
    depth: usize,
}

impl CostPlace {
    /// The place below this one that a name leads to.
    #[must_use]
    pub fn below(&self, name: &str) -> Option<&Self> {
        self.below.get(name)
    }

    /// Number of names that lead to the place.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }
}

impl CostDecorations {
    /// The weights of a service; of several for one place the last holds.
    #[must_use]
    pub fn new(all: Vec<GraphqlCostDecoration>) -> Self {
        if all.is_empty() {
            return Self(None);
        }
        let mut root = CostPlace::default();
        for (at, weight) in all.iter().enumerate() {
            let mut place = &mut root;
            for name in weight.field_path.split('.') {
                let depth = place.depth + 1;
                place = place.below.entry(name.into()).or_default();
                place.depth = depth;
            }
            place.weight = Some(at);
        }
        Self(Some(Arc::new(Places { all, root })))
    }

    /// True for a service without weights.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The weights.
    #[must_use]
    pub fn all(&self) -> &[GraphqlCostDecoration] {
        self.0.as_ref().map_or(&[], |places| &places.all)
    }

    /// The place that the names of types lead on from.
    #[must_use]
    pub fn root(&self) -> Option<&CostPlace> {
        self.0.as_ref().map(|places| &places.root)
    }

    /// The weight of a place.
    #[must_use]
    pub fn weight(&self, place: &CostPlace) -> Option<&GraphqlCostDecoration> {
        self.all().get(place.weight?)
    }
}

impl PartialEq for CostDecorations {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

impl Serialize for CostDecorations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all().serialize(serializer)
    }
}
