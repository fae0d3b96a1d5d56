"""The explorer: a local page that shows running simulations. It displays the pieces that `stream` yields."""
