//! Events of the demo and of the benchmarks: the life of a shop, the same on every run.

use std::sync::Arc;

use anyhow::Result;
use fastrand::Rng;
use serde_json::json;

use crate::client::Event;

/// The queue of order events, one partition per customer.
pub const ORDERS: &str = "orders";
/// The queue of page views, one partition per visitor.
pub const CLICKS: &str = "clicks";

/// Events in both queues together.
pub const EVENTS: usize = 100_000;
/// Of ten events, how many are order events; the others are clicks.
const ORDERS_IN_TEN: u8 = 3;
const CUSTOMERS: usize = 2_000;
const VISITORS: usize = 10_000;
const SEED: u64 = 20_260_904;

const STATES: [&str; 5] = ["placed", "paid", "packed", "shipped", "delivered"];
const CITIES: [&str; 8] = [
    "Lisbon",
    "Turin",
    "Göteborg",
    "Kraków",
    "Lyon",
    "Graz",
    "Cork",
    "Tartu",
];
const PRODUCTS: [(&str, &str, u32); 8] = [
    ("KET-110", "Enamel kettle, 1.5 l", 3_490),
    ("MUG-021", "Stoneware mug, speckled", 1_290),
    ("TEA-404", "Darjeeling, first flush, 100 g", 1_850),
    ("POT-007", "Cast-iron teapot", 5_900),
    ("TIN-300", "Tin for 250 g of tea", 790),
    ("SPO-012", "Olive-wood spoon", 640),
    ("TRA-055", "Serving tray, beech", 2_990),
    ("FIL-200", "Paper filters, 200 pieces", 450),
];
const PAGES: [&str; 6] = [
    "/",
    "/tea",
    "/tea/darjeeling",
    "/pots",
    "/basket",
    "/checkout",
];
const SOURCES: [&str; 4] = ["newsletter", "search", "direct", "a friend's link"];
const BROWSERS: [&str; 3] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Safari/604.1",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/126.0.0.0 Safari/537.36",
];

/// Where a customer's current order stands.
#[derive(Clone, Default)]
struct Customer {
    orders: u32,
    state: usize,
    lines: Vec<(usize, u32)>,
}

/// The first `count` events, in the order in which they happen.
pub fn first(count: usize) -> Result<Vec<Event>> {
    let mut rng = Rng::with_seed(SEED);
    let mut customers = vec![Customer::default(); CUSTOMERS];
    let mut visits = vec![0_u32; VISITORS];
    (0..count)
        .map(|number| {
            if rng.u8(0..10) < ORDERS_IN_TEN {
                // The lesser of two draws: some customers come more often than others.
                let customer = rng.usize(0..CUSTOMERS).min(rng.usize(0..CUSTOMERS));
                order(&mut rng, number, customer, &mut customers[customer])
            } else {
                let visitor = rng.usize(0..VISITORS);
                visits[visitor] += 1;
                click(&mut rng, number, visitor, visits[visitor])
            }
        })
        .collect()
}

fn order(rng: &mut Rng, number: usize, id: usize, customer: &mut Customer) -> Result<Event> {
    if customer.state == 0 {
        customer.orders += 1;
        let lines = rng.usize(1..4);
        customer.lines = (0..lines)
            .map(|_| (rng.usize(0..PRODUCTS.len()), rng.u32(1..4)))
            .collect();
    }
    let mut cents = 0;
    let mut lines = Vec::new();
    for (product, count) in &customer.lines {
        let (sku, name, price) = PRODUCTS[*product];
        cents += price * count;
        lines.push(json!({"sku": sku, "name": name, "count": count, "cents": price}));
    }
    let payload = json!({
        "event": format!("order.{}", STATES[customer.state]),
        "order": format!("{id:04}-{:03}", customer.orders),
        "status": STATES[customer.state],
        "lines": lines,
        "total": {"cents": cents, "currency": "EUR"},
        "ship_to": {"city": CITIES[id % CITIES.len()], "street": format!("Market Street {id}")},
    });
    customer.state = (customer.state + 1) % STATES.len();
    event(
        ORDERS,
        format!("customer-{id:04}"),
        format!("order-event-{number}"),
        &payload,
    )
}

fn click(rng: &mut Rng, number: usize, visitor: usize, visit: u32) -> Result<Event> {
    let product = PRODUCTS[rng.usize(0..PRODUCTS.len())].0;
    let payload = json!({
        "event": "page.viewed",
        "page": PAGES[rng.usize(0..PAGES.len())],
        "visit": visit,
        "source": SOURCES[rng.usize(0..SOURCES.len())],
        "milliseconds": rng.u32(40..2_500),
        "shown": product,
        "screen": {"width": 320 * rng.u32(1..8), "height": 240 * rng.u32(2..6)},
        "agent": BROWSERS[visitor % BROWSERS.len()],
    });
    event(
        CLICKS,
        format!("visitor-{visitor:05}"),
        format!("click-{number}"),
        &payload,
    )
}

fn event(
    queue: &str,
    partition: String,
    transaction_id: String,
    payload: &serde_json::Value,
) -> Result<Event> {
    let payload = Arc::from(serde_json::to_string(payload)?);
    Ok(Event {
        queue: queue.into(),
        partition,
        transaction_id,
        payload,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CLICKS, EVENTS, ORDERS, first};

    #[test]
    fn the_events_are_the_same_on_every_run_and_of_realistic_size() {
        let events = first(EVENTS).expect("they are made of plain values");
        let again = first(EVENTS).expect("they are made of plain values");
        assert_eq!(events.len(), EVENTS);
        assert!(
            events
                .iter()
                .zip(&again)
                .all(|(a, b)| a.payload == b.payload)
        );
        let sizes: BTreeSet<usize> = events.iter().map(|event| event.payload.len()).collect();
        assert!(
            sizes.first() >= Some(&200) && sizes.last() <= Some(&600),
            "{sizes:?}"
        );
        for (queue, partitions) in [(ORDERS, 2_000), (CLICKS, 10_000)] {
            let of_queue = events.iter().filter(|event| event.queue == queue);
            let names: BTreeSet<&str> = of_queue.map(|event| event.partition.as_str()).collect();
            assert!(names.len() > partitions * 9 / 10 && names.len() <= partitions);
        }
    }
}
