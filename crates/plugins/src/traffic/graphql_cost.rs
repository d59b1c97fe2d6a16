//! The cost of an operation of GraphQL by the weights of its fields, as APISIX counts it.
//!
//! The cost of a field is that of everything selected below it, times its factor, and its own cost. A weight stands at a place
//! in the schema of the upstream, and a document names fields alone, so the types of fields come from that schema.

use std::collections::{HashMap, HashSet};

use apollo_compiler::Name;
use apollo_compiler::ast::{
    Argument, Definition, Document, Field, FragmentDefinition, OperationDefinition, OperationType, Selection, Value,
};
use serde_json::{Map, Value as Json};
use weir_config::{CostDecorations, CostPlace, GraphqlCostDecoration};

use super::graphql::{DEEPEST, invalid};
use super::graphql_schema::{FieldType, UpstreamSchema};

/// Most selections that are counted, each fragment as often as it stands there.
const MOST_SELECTIONS: usize = 100_000;
/// The largest cost; whatever costs more has no finite one.
pub(super) const LARGEST: f64 = (1_u64 << 53) as f64;

/// The way to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// Every field.
    Fields,
    /// Fields with a number among their arguments that multiplies, as often as they are asked for.
    Quantifiers,
}

/// Counts operations.
pub(super) struct Costs<'c> {
    pub(super) count: Count,
    pub(super) weights: &'c CostDecorations,
    /// The schema of the upstream; `None` where there are no weights.
    pub(super) schema: Option<&'c UpstreamSchema>,
    /// Values of variables; `None`: neither they nor defaults count.
    pub(super) variables: Option<&'c Map<String, Json>>,
}

/// The weight of a field.
#[derive(Debug, Clone, Copy)]
struct Weight {
    own: f64,
    factor: f64,
    /// True if a number among the arguments multiplies.
    has_quantifier: bool,
}

/// Places of the schema that fit a field, the one that begins with its own type last.
type Fitting<'c> = Vec<&'c CostPlace>;

/// A type of the schema by its name, and the places that fit it.
struct Level<'c> {
    of: Option<&'c str>,
    fitting: Fitting<'c>,
}

/// One count of an operation.
struct Walk<'c, 'd> {
    costs: &'d Costs<'c>,
    fragments: HashMap<&'d str, &'d FragmentDefinition>,
    operation: &'d OperationDefinition,
    /// Fragments that are being counted.
    within: HashSet<&'d Name>,
    left: usize,
}

/// A document with more than is counted.
struct TooMuch;

impl<'c> Costs<'c> {
    /// The cost of the operation of a document that a name says, or else of its costliest one.
    ///
    /// # Errors
    /// The message of a refusal.
    pub(super) fn of(&self, document: &Document, name: Option<&str>) -> Result<f64, String> {
        let mut fragments = HashMap::new();
        let mut operations = Vec::new();
        for definition in &document.definitions {
            match definition {
                Definition::FragmentDefinition(fragment) => {
                    fragments.insert(fragment.name.as_str(), &**fragment);
                }
                Definition::OperationDefinition(operation) => operations.push(&**operation),
                _ => {}
            }
        }
        if operations.is_empty() {
            return Err(invalid("empty graphql query"));
        }
        let is_named =
            |operation: &&&OperationDefinition| name.is_some() && operation.name.as_ref().map(Name::as_str) == name;
        if let Some(named) = operations.iter().find(is_named).copied() {
            operations = vec![named];
        }
        let mut most = 0.0_f64;
        let mut left = MOST_SELECTIONS;
        for operation in operations {
            let mut walk = Walk { costs: self, fragments: fragments.clone(), operation, within: HashSet::new(), left };
            let cost = walk.operation().map_err(|TooMuch| invalid("the query expands too many selections"))?;
            left = walk.left;
            most = most.max(cost);
        }
        Ok(most)
    }
}

/// A cost, or the largest one where it is none.
fn bounded(cost: f64) -> f64 {
    if cost < LARGEST { cost } else { LARGEST }
}

impl<'c, 'd> Walk<'c, 'd> {
    fn operation(&mut self) -> Result<f64, TooMuch> {
        let of = self.costs.schema.map(|schema| match self.operation.operation_type {
            OperationType::Mutation => schema.mutation.as_str(),
            _ => schema.query.as_str(),
        });
        let level = Level { of, fitting: self.begun(of).into_iter().collect() };
        let weight = self.weight(&level.fitting, &[], None);
        self.cost(&self.operation.selection_set, weight, &level, 1.0, 0)
    }

    /// The place that begins with a type.
    fn begun(&self, of: Option<&str>) -> Option<&'c CostPlace> {
        self.costs.weights.root()?.below(of?)
    }

    /// The cost of a field with this weight, which is asked for so many times, and of what is selected below it.
    fn cost(
        &mut self,
        selections: &'d [Selection],
        weight: Weight,
        level: &Level<'c>,
        times: f64,
        depth: usize,
    ) -> Result<f64, TooMuch> {
        if self.costs.count == Count::Fields {
            let below = self.below(selections, level, times, depth)?;
            return Ok(bounded(below * weight.factor + weight.own));
        }
        let (own, times) = match weight.has_quantifier {
            true => (times * weight.own, bounded(times * weight.factor)),
            false => (0.0, times),
        };
        Ok(bounded(own + self.below(selections, level, times, depth)?))
    }

    /// The sum of the costs of what is selected.
    fn below(
        &mut self,
        selections: &'d [Selection],
        level: &Level<'c>,
        times: f64,
        depth: usize,
    ) -> Result<f64, TooMuch> {
        if depth > DEEPEST {
            return Err(TooMuch);
        }
        let mut sum = 0.0;
        for selection in selections {
            self.left = self.left.checked_sub(1).ok_or(TooMuch)?;
            sum += match selection {
                Selection::Field(field) => self.field(field, level, times, depth)?,
                Selection::InlineFragment(inline) => {
                    let inner = self.narrowed(level, inline.type_condition.as_ref());
                    self.below(&inline.selection_set, inner.as_ref().unwrap_or(level), times, depth + 1)?
                }
                Selection::FragmentSpread(spread) => {
                    let fragment = self.fragments.get(spread.fragment_name.as_str()).copied();
                    // One that names itself is counted once.
                    let Some(fragment) = fragment.filter(|fragment| self.within.insert(&fragment.name)) else {
                        continue;
                    };
                    let inner = self.narrowed(level, Some(&fragment.type_condition));
                    let cost = self.below(&fragment.selection_set, inner.as_ref().unwrap_or(level), times, depth + 1);
                    self.within.remove(&fragment.name);
                    cost?
                }
            };
        }
        Ok(sum)
    }

    fn field(&mut self, field: &'d Field, level: &Level<'c>, times: f64, depth: usize) -> Result<f64, TooMuch> {
        let definition = self.costs.schema.zip(level.of).and_then(|(schema, of)| schema.field(of, &field.name));
        let of = definition.and_then(|definition| definition.of.as_deref());
        let mut fitting = Fitting::new();
        if level.of.is_some() {
            fitting.extend(level.fitting.iter().filter_map(|place| place.below(&field.name)));
            fitting.extend(self.begun(of));
        }
        let weight = self.weight(&fitting, &field.arguments, definition);
        self.cost(&field.selection_set, weight, &Level { of, fitting }, times, depth + 1)
    }

    /// The level in a fragment for a type, where that is another one than before and the schema has it.
    fn narrowed(&self, level: &Level<'c>, condition: Option<&Name>) -> Option<Level<'c>> {
        let of = self.costs.schema?.type_name(condition?)?;
        if level.of == Some(of) {
            return None;
        }
        let mut fitting = level.fitting.clone();
        fitting.extend(self.begun(Some(of)));
        Some(Level { of: Some(of), fitting })
    }

    /// The weight of a field that places fit; of several the longer holds.
    fn weight(
        &self,
        fitting: &[&'c CostPlace],
        arguments: &[apollo_compiler::Node<Argument>],
        definition: Option<&FieldType>,
    ) -> Weight {
        let weights = self.costs.weights;
        let mut found: Vec<(usize, &GraphqlCostDecoration)> =
            fitting.iter().filter_map(|place| Some((place.depth(), weights.weight(place)?))).collect();
        found.sort_by_key(|(depth, _)| *depth);
        let Some((_, last)) = found.last() else { return Weight { own: 1.0, factor: 1.0, has_quantifier: false } };
        let names = |of: fn(&GraphqlCostDecoration) -> &Vec<String>| {
            found.iter().rev().map(|(_, weight)| of(weight)).find(|names| !names.is_empty())
        };
        let numbers = |names: Option<&'c Vec<String>>| {
            let names = names.into_iter().flatten();
            names.filter_map(|name| self.number(name, arguments, definition)).collect::<Vec<f64>>()
        };
        let added: f64 = numbers(names(|weight| &weight.add_arguments)).iter().sum();
        let factors = numbers(names(|weight| &weight.mul_arguments));
        Weight {
            own: bounded(last.add_value + added),
            factor: bounded(last.mul_value * factors.iter().product::<f64>()),
            has_quantifier: !factors.is_empty(),
        }
    }

    /// The number of an argument; `None` where it has none that counts, such as one below 0, which would lower costs.
    fn number(
        &self,
        name: &str,
        arguments: &[apollo_compiler::Node<Argument>],
        definition: Option<&FieldType>,
    ) -> Option<f64> {
        let told = arguments.iter().find(|argument| argument.name == name).map(|argument| &*argument.value);
        let told = match (told, self.costs.variables) {
            (Some(Value::Variable(variable)), Some(variables)) => match variables.get(variable.as_str()) {
                Some(value) => Some(of_json(value)),
                None => {
                    let defined = self.operation.variables.iter().find(|defined| defined.name == *variable);
                    defined.and_then(|defined| defined.default_value.as_deref()).map(of_literal)
                }
            },
            // Lists and objects are no numbers, as little as an argument that is not there.
            (Some(Value::Variable(_)), None) | (Some(Value::Null | Value::List(_) | Value::Object(_)) | None, _) => {
                None
            }
            (Some(literal), _) => Some(of_literal(literal)),
        };
        let number = match told {
            Some(number) => number,
            None => {
                let default = definition.filter(|_| self.costs.variables.is_some())?.defaults.get(name)?;
                of_text(default)
            }
        };
        number.filter(|number| number.is_finite() && *number >= 0.0)
    }
}

fn of_text(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

fn of_literal(literal: &Value) -> Option<f64> {
    match literal {
        Value::Int(number) => of_text(number.as_str()),
        Value::Float(number) => of_text(number.as_str()),
        Value::String(text) => of_text(text),
        _ => None,
    }
}

fn of_json(value: &Json) -> Option<f64> {
    value.as_f64().or_else(|| of_text(value.as_str()?))
}
