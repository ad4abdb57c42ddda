//! Reads the specification of an experiment, builds its parts and coordinates them.
