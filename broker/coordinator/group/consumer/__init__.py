"""Consumer groups of KIP-848: members, epochs, assignments."""
