//! Reports of usage: `POST /transactions.xml`.

use serde_json::{Map, Value};

use crate::authorize::credentials;
use crate::catalog::{Catalog, Indexed};
use crate::counts::Counts;
use crate::extensions::Extensions;
use crate::fault::Fault;
use crate::params::{Params, filled, text};
use crate::period::parse;
use crate::usage::Usage;

/// Seconds that a transaction may be in the past.
const PAST: u64 = 86_400;
/// Seconds that it may be in the future.
const FUTURE: u64 = 3_600;

/// Transactions that did not count: the service, and the reason for each.
pub(crate) type NotCounted = (String, Vec<Fault>);

/// Counts the transactions of a report at a time in milliseconds since 1970. One that is wrong does not count, and is no
/// error of the call.
pub(crate) fn report(
    catalog: &Catalog,
    counts: &Counts,
    (params, extensions): (&Params, Extensions),
    now: u64,
) -> Result<NotCounted, Fault> {
    let given = credentials(params);
    // A call without credentials is told so, whatever else is wrong with it.
    let service = catalog.service_of_call(&given);
    if let Err(fault) = &service
        && fault.is_of_credentials()
    {
        return Err(fault.clone());
    }
    let transactions = transactions(params)?;
    let service = service?;
    let mut wrong = Vec::new();
    for transaction in transactions {
        match count(catalog, counts, service, (transaction, extensions), now) {
            Ok(()) => {}
            // Whoever reports has to know, and to report once more.
            Err(Fault::NoRoom) => return Err(Fault::NoRoom),
            Err(fault) => wrong.push(fault),
        }
    }
    Ok((service.service.id.clone(), wrong))
}

/// The transactions of a call.
fn transactions(params: &Params) -> Result<Vec<&Map<String, Value>>, Fault> {
    let transactions = match params.get("transactions") {
        None | Some(Value::Null) => return Err(Fault::TransactionsIsBlank),
        Some(Value::String(text)) if text.is_empty() => return Err(Fault::TransactionsIsBlank),
        Some(Value::Object(transactions)) => transactions,
        Some(_) => return Err(Fault::TransactionsFormatInvalid),
    };
    if transactions.values().any(Value::is_null) {
        return Err(Fault::TransactionsHasNilTransaction);
    }
    let list: Option<Vec<_>> = transactions.values().map(Value::as_object).collect();
    let list = list.ok_or(Fault::TransactionsFormatInvalid)?;
    if list.iter().any(|transaction| transaction.contains_key("user_id")) {
        return Err(Fault::EndUsersNoLongerSupported);
    }
    Ok(list)
}

fn count(
    catalog: &Catalog,
    counts: &Counts,
    service: &Indexed,
    (transaction, extensions): (&Map<String, Value>, Extensions),
    now: u64,
) -> Result<(), Fault> {
    let (id, user_key) = (filled(transaction, "app_id"), filled(transaction, "user_key"));
    let application = catalog.application_of(&service.service.id, id, user_key)?;
    let given = match transaction.get("usage") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(usage)) => usage,
        Some(_) => return Err(Fault::TransactionsFormatInvalid),
    };
    let usage = Usage::read(service, given, extensions.flat_usage)?;
    let at = time(text(transaction, "timestamp"), now)?;
    counts.charge(service, application, &usage, (at, now))
}

/// The time of a transaction in milliseconds since 1970: now, unless it has one of its own.
fn time(given: Option<&str>, now: u64) -> Result<u64, Fault> {
    let Some(at) = given.and_then(parse) else { return Ok(now) };
    let seconds = |milliseconds: i64| milliseconds.div_euclid(1000);
    let difference = seconds(at) - seconds(i64::try_from(now).unwrap_or(i64::MAX));
    if difference < 0 && difference.unsigned_abs() > PAST {
        return Err(Fault::TransactionTimestampTooOld(PAST));
    }
    if difference > 0 && difference.unsigned_abs() > FUTURE {
        return Err(Fault::TransactionTimestampTooNew(FUTURE));
    }
    Ok(u64::try_from(at).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{FUTURE, Fault, PAST, time};

    #[test]
    fn times_are_within_a_day_before_and_an_hour_after() {
        let now = 1_800_000_000_500;
        let at = |difference: i64| (1_800_000_000 + difference).to_string();
        for (given, expected) in [
            (None, Ok(now)),
            (Some(String::new()), Ok(now)),
            (Some("garbage".to_owned()), Ok(now)),
            (Some(at(0)), Ok(1_800_000_000_000)),
            (Some(at(-86_400)), Ok(1_799_913_600_000)),
            (Some(at(-86_401)), Err(Fault::TransactionTimestampTooOld(PAST))),
            (Some(at(3_600)), Ok(1_800_003_600_000)),
            (Some(at(3_601)), Err(Fault::TransactionTimestampTooNew(FUTURE))),
            (Some("-1".to_owned()), Err(Fault::TransactionTimestampTooOld(PAST))),
        ] {
            assert_eq!(time(given.as_deref(), now), expected, "{given:?}");
        }
    }
}
