//! Conditions of policies: comparisons of texts, combined.

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Invalid;

use super::text::{Around, Text, TextType};

/// A condition; without operations it holds.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// `and` or `or`.
    combine_op: CombineOp,
    /// Comparisons.
    operations: Vec<Operation>,
}

/// The way in which comparisons are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum CombineOp {
    #[default]
    And,
    Or,
}

/// A comparison.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct Operation {
    /// The left text.
    #[serde(alias = "match")]
    pub(super) left: String,
    /// Its kind.
    #[serde(default, alias = "match_type")]
    pub(super) left_type: TextType,
    /// `==`, `!=` or `matches`, where the right text is a regular expression.
    pub(super) op: Op,
    /// The right text.
    #[serde(alias = "value")]
    pub(super) right: String,
    /// Its kind.
    #[serde(default, alias = "value_type")]
    pub(super) right_type: TextType,
}

/// An operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum Op {
    #[serde(rename = "==")]
    Equal,
    #[serde(rename = "!=")]
    Unequal,
    #[serde(rename = "matches")]
    Matches,
}

/// A condition, compiled.
#[derive(Debug)]
pub(super) struct Condition {
    is_any: bool,
    comparisons: Box<[(Text, Comparison)]>,
}

/// The right side of a comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    op: Op,
    right: Text,
    /// The expression of a right text that is the same for all requests.
    regex: Option<Regex>,
}

impl Conf {
    /// True without a comparison.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

impl Condition {
    /// Compiles a condition at a place of the configuration.
    pub(super) fn compile(conf: &Conf, field: &str) -> Result<Self, Invalid> {
        let compile = |(at, operation): (usize, &Operation)| {
            let field = format!("{field}.operations[{at}]");
            let left = Text::compile(&operation.left, operation.left_type, &format!("{field}.left"))?;
            let right = (operation.right.as_str(), operation.right_type);
            Ok((left, Comparison::compile(operation.op, right, &format!("{field}.right"))?))
        };
        let comparisons = conf.operations.iter().enumerate().map(compile).collect::<Result<_, Invalid>>()?;
        Ok(Self { is_any: conf.combine_op == CombineOp::Or, comparisons })
    }

    /// True if the condition holds for a request.
    pub(super) fn holds(&self, around: &Around<'_>) -> bool {
        let holds = |(left, comparison): &(Text, Comparison)| comparison.holds(&left.render(around), around);
        combine(self.is_any, self.comparisons.iter().map(holds))
    }
}

/// All or any of some comparisons.
pub(super) fn combine(is_any: bool, mut comparisons: impl Iterator<Item = bool>) -> bool {
    if is_any { comparisons.any(|holds| holds) } else { comparisons.all(|holds| holds) }
}

impl Comparison {
    pub(super) fn compile(op: Op, (right, kind): (&str, TextType), field: &str) -> Result<Self, Invalid> {
        let regex = match (op, kind) {
            (Op::Matches, TextType::Plain) => Some(regex(right, field)?),
            _ => None,
        };
        Ok(Self { op, right: Text::compile(right, kind, field)?, regex })
    }

    /// Compares a left text.
    pub(super) fn holds(&self, left: &str, around: &Around<'_>) -> bool {
        if let Some(regex) = &self.regex {
            return regex.is_match(left);
        }
        let right = self.right.render(around);
        match self.op {
            Op::Equal => left == right,
            Op::Unequal => left != right,
            // An expression that a request has made is none that is trusted to be one.
            Op::Matches => Regex::new(&right).is_ok_and(|regex| regex.is_match(left)),
        }
    }
}

/// A regular expression at a place of the configuration.
pub(super) fn regex(text: &str, field: &str) -> Result<Regex, Invalid> {
    Regex::new(text).map_err(|error| {
        let text = error.to_string().lines().last().unwrap_or_default().to_owned();
        Invalid::new(field, format!("expected a regular expression without look-around and references: {text}"))
    })
}
