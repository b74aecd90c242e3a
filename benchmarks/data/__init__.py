"""Real streams whose disorder is not made up: a year of flights, a week of earthquakes."""
