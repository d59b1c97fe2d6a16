use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::head::resource;
use super::{Id, Methods};

resource! {
    /// The rights and limits of callers. The plugin `plan` puts callers on plans.
    pub struct Plan {
        /// Limits, all of which a request has to keep. Absent: any number of requests.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 16))]
        pub limits: Vec<PlanLimit>,
        /// Metrics that limits count instead of requests.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 64))]
        pub metrics: Vec<PlanMetric>,
        /// The allowed requests: a request has to fit one of the entries. Absent: everything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(min = 1, max = 256))]
        pub access: Option<Vec<PlanAccess>>,
    }
}

/// One limit of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanLimit {
    /// Requests that pass in a period, or units of the `metric`; 0: none.
    #[schemars(range(min = 0, max = 1_099_511_627_775_u64))]
    pub count: u64,
    /// Name of the metric of the plan that is counted. The limit holds for requests that count in the metric. Absent: all
    /// requests, each as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub metric: Option<String>,
    /// The period. A `month` has 30 days and a `year` 365, except in a calendar.
    pub per: Period,
    /// The sequence of periods.
    #[serde(default)]
    pub window: PlanWindow,
    /// The scope of a count, for each caller on the plan.
    #[serde(default)]
    pub scope: PlanScope,
}

/// Something that requests use: a request adds the units of all rules that it fits.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanMetric {
    /// The name that limits refer to.
    #[schemars(length(min = 1, max = 100), regex(pattern = r"^[A-Za-z0-9_.\-]+$"))]
    pub name: String,
    /// The requests that count, such as those of an endpoint.
    #[schemars(length(min = 1, max = 256))]
    pub rules: Vec<PlanMetricRule>,
}

/// Requests that count in a metric. A request has to fit all fields that are there.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanMetricRule {
    /// Ids of routes. They need not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub routes: Option<Vec<Id>>,
    /// Ids of services. They need not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub services: Option<Vec<Id>>,
    /// Methods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub methods: Option<Methods>,
    /// Paths: the whole path, decoded, or its beginning and `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 4096), regex(pattern = r"^/")))]
    pub paths: Option<Vec<String>>,
    /// Units of a request.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = 1))]
    pub units: u32,
}

fn one() -> u32 {
    1
}

/// A period of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Period {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// The sequence of periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlanWindow {
    /// A period begins with a caller's first request, and the next one with the first request after its end.
    #[default]
    Fixed,
    /// A period ends now: the requests of the period before count by the share of it that still lies within.
    Sliding,
    /// Periods of the calendar, in UTC: a week begins on Monday.
    Calendar,
}

/// The scope of a limit's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlanScope {
    /// Nothing: all requests of a caller on the plan count together.
    #[default]
    Plan,
    /// Each service; requests of routes without one count together.
    Service,
    /// Each route.
    Route,
}

/// Something that callers on a plan may call. A request has to fit all fields that are there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanAccess {
    /// Ids of routes. They need not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub routes: Option<Vec<Id>>,
    /// Ids of services. They need not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub services: Option<Vec<Id>>,
    /// Methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Methods>,
    /// Paths: the whole path, decoded, or its beginning and `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 4096), regex(pattern = r"^/")))]
    pub paths: Option<Vec<String>>,
}
