"""Text for service managers and gateways, from one `Deployment`. Pure: nothing here writes or runs."""
