//! Requests and answers as plain values, and the HTTP interface of a keeper.
