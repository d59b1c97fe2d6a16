//! The answer to an authorisation: its document and its fields.

use std::cmp::Reverse;

use crate::authorize::Verdict;
use crate::counts::Used;
use crate::extensions::Extensions;
use crate::fault::Fault;
use crate::period::{Period, format};
use crate::usage::Amount;
use crate::xml::{HEAD, push_attribute, push_element};

/// Most keys of an application that are listed.
const LISTED_KEYS: usize = 256;

impl Verdict<'_> {
    /// The document.
    pub(crate) fn document(&self, extensions: Extensions) -> String {
        let mut out = format!("{HEAD}<status>");
        match &self.refusal {
            None => out.push_str("<authorized>true</authorized>"),
            Some(reason) => {
                out.push_str("<authorized>false</authorized>");
                push_element(&mut out, "reason", &reason.to_string());
            }
        }
        if self.kind.is_oauth {
            self.push_application(&mut out);
        }
        push_element(&mut out, "plan", self.application.plan_name.as_deref().unwrap_or_default());
        if !self.used.is_empty() {
            out.push_str("<usage_reports>");
            for used in &self.used {
                self.push_report(used, &mut out);
            }
            out.push_str("</usage_reports>");
        }
        if extensions.list_app_keys {
            self.push_keys(&mut out);
        }
        if extensions.hierarchy {
            self.push_hierarchy(&mut out);
        }
        out.push_str("</status>");
        out
    }

    fn push_application(&self, out: &mut String) {
        let application = self.application;
        out.push_str("<application>");
        push_element(out, "id", &application.id);
        push_element(out, "key", application.keys.first().map_or("", String::as_str));
        let name = if self.says_uri { "redirect_uri" } else { "redirect_url" };
        push_element(out, name, application.redirect_url.as_deref().unwrap_or_default());
        out.push_str("</application>");
    }

    fn push_report(&self, used: &Used, out: &mut String) {
        out.push_str("<usage_report");
        push_attribute(out, "metric", self.service.metric_name(used.metric));
        push_attribute(out, "period", used.period.name());
        if used.count > used.max {
            push_attribute(out, "exceeded", "true");
        }
        out.push('>');
        if used.period != Period::Eternity {
            push_element(out, "period_start", &format(used.start));
            push_element(out, "period_end", &format(used.end));
        }
        push_element(out, "max_value", &used.max.to_string());
        push_element(out, "current_value", &self.count_after(used).to_string());
        out.push_str("</usage_report>");
    }

    fn push_keys(&self, out: &mut String) {
        out.push_str("<app_keys");
        push_attribute(out, "app", &self.application.id);
        push_attribute(out, "svc", &self.service.service.id);
        out.push('>');
        for key in self.application.keys.iter().take(LISTED_KEYS) {
            out.push_str("<key");
            push_attribute(out, "id", key);
            out.push_str("/>");
        }
        out.push_str("</app_keys>");
    }

    fn push_hierarchy(&self, out: &mut String) {
        out.push_str("<hierarchy>");
        for used in &self.used {
            out.push_str("<metric");
            push_attribute(out, "name", self.service.metric_name(used.metric));
            let children: Vec<&str> = self.service.children(used.metric).collect();
            push_attribute(out, "children", &children.join(" "));
            out.push_str("/>");
        }
        out.push_str("</hierarchy>");
    }

    /// Values of `3scale-limit-remaining`, `-reset` and `-max-value`: calls like this one that the tightest limit leaves, the
    /// seconds until it is renewed, and its value. Of equal ones the limit with the longest period counts. -1 is no limit.
    /// `None` for a refusal that has nothing to do with limits.
    pub(crate) fn limit_fields(&self, now: u64) -> Option<(i64, i64, Option<u64>)> {
        if self.refusal.as_ref().is_some_and(|reason| *reason != Fault::LimitsExceeded) {
            return None;
        }
        let concerned = self.used.iter().filter(|used| self.concerns(used.metric));
        let remaining = concerned.map(|used| (self.same_calls(used), used));
        let tightest = remaining
            .filter_map(|(calls, used)| Some((calls?, used)))
            .min_by_key(|(calls, used)| (*calls, used.period as u8, Reverse(used.max)));
        let Some((calls, used)) = tightest else { return Some((-1, -1, None)) };
        let reset = match used.period {
            Period::Eternity => -1,
            _ => i64::try_from(used.end.saturating_sub(now).div_ceil(1000)).unwrap_or(i64::MAX),
        };
        Some((i64::try_from(calls).unwrap_or(i64::MAX), reset, Some(used.max)))
    }

    /// True for a metric that the call uses itself or by its methods; for any metric if the call uses none.
    fn concerns(&self, metric: usize) -> bool {
        self.usage.as_ref().is_none_or(|usage| usage.of(metric).is_some())
    }

    /// Calls like this one that a limit leaves; `None`: any number of them.
    fn same_calls(&self, used: &Used) -> Option<u64> {
        let remaining = used.max.saturating_sub(self.count_after(used));
        if remaining == 0 {
            return Some(0);
        }
        let amount = self.usage.as_ref().and_then(|usage| usage.of(used.metric));
        match amount {
            None | Some(Amount::Add(0) | Amount::Set(0)) => None,
            Some(Amount::Add(units) | Amount::Set(units)) => Some(remaining / units),
        }
    }
}
