//! Traces: `traceparent` on its way through, and the spans that a collector gets.

#[cfg(feature = "otlp")]
mod collector;
mod propagation;
#[cfg(feature = "otlp")]
mod spans;

const SPAN: &str = "00f067aa0ba902b7";

/// The id of a trace, by a number.
fn trace(number: u32) -> String {
    format!("{:032x}", 0xabc0_0000 + u128::from(number))
}

/// A `traceparent` with these flags.
fn parent(number: u32, flags: &str) -> String {
    format!("00-{}-{SPAN}-{flags}", trace(number))
}
