//! Deliverers against an endpoint of the test's own, over the real machine's rows.

mod deliveries;
mod endpoint;
mod hostile;
mod poison;
mod replica;
mod runs;
